"""The examples, run as a reader would run them, against one served broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from acceptance.official_client import EXAMPLES, Fields, java_classpath, node_environment
from acceptance.serving import Served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("examples") / "data", "--pipeline", "embedded")
    served.prepare("order-timeouts")
    yield served.start()
    served.stop()


def _run(served: Served, *command: str | Path, environment: Fields | None = None) -> None:
    result = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, **(environment or {}), "TIDEMILL_ENDPOINT": served.endpoint},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "everything held" in result.stdout


@pytest.mark.parametrize("name", ["official_python", "tidemill_client"])
def test_the_order_timeout_in_python(served, name):
    _run(served, sys.executable, EXAMPLES / name / "order_timeout.py")


def test_the_order_timeout_in_node(served, tmp_path):
    environment = {**node_environment(), "HOME": str(tmp_path)}
    _run(served, "node", EXAMPLES / "node" / "order_timeout.js", environment=environment)


def test_the_order_timeout_in_java(served, tmp_path):
    _run(served, "java", f"-Drocketmq.log.root={tmp_path}", "-cp", java_classpath(), "OrderTimeout")


@pytest.mark.parametrize("name", ["official_python", "tidemill_client", "node", "java", "polled_table"])
def test_every_example_is_one_command_with_a_few_words_about_it(name):
    assert os.access(EXAMPLES / name / "run.sh", os.X_OK)
    assert (EXAMPLES / name / "README.md").read_text().startswith("# With ")
