"""The pipeline process ends with the broker, and takes along also what would not notice. No Spark here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline.spark_broker import wait_for
from tidemill.core.processes import is_alive, kill

pytestmark = pytest.mark.slow

# Below it a process that was stopped: it sees no pipe close.
_DRIVER = """
import os, signal, subprocess, sys
from tidemill.pipeline.driver import end_with_the_broker
below = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(900)"])
os.kill(below.pid, signal.SIGSTOP)
print(below.pid, flush=True)
end_with_the_broker()
"""


def test_it_ends_with_the_broker_and_so_does_what_is_stopped_below_it() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    command = [sys.executable, "-c", _DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        below = int(driver.stdout.readline())
        try:
            driver.stdin.close()
            assert driver.wait(120) == 0
            wait_for("the stopped one is gone too", lambda: not is_alive(below))
        finally:
            kill([below])
