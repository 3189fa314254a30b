"""A client in a forked process: its own connections, its own answers, and no call waits forever."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import tidemill
from acceptance.serving import PATIENCE_S, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("forked") / "data", "--flight-port", "0")
    served.start()
    yield served
    served.stop()


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["answers", "threads", "closed", "tables", "tasks"])
def test_a_program_may_fork_with_a_client_in_hand(served, scene) -> None:
    with tidemill.Client(served.endpoint) as client:
        if any(topic.name == "t" for topic in client.topics.list()):
            client.topics.delete("t", force=True)
        client.topics.create("t")
    program = Path(__file__).with_name("forking_program.py")
    done = subprocess.run(
        [sys.executable, str(program), scene, served.endpoint],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_a_client_is_not_kept_for_a_fork_that_may_come() -> None:
    client = weakref.ref(tidemill.Client())
    tasks_client = weakref.ref(tidemill.AsyncClient())
    gc.collect()
    assert client() is None
    assert tasks_client() is None
