"""Processes of the pipeline: they end with the broker, and workers share what they need. No Spark here."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pipeline.spark_broker import wait_for
from tidemill.core.processes import is_alive, kill

pytestmark = pytest.mark.slow

# Below it a process that was stopped: it sees no pipe close.
_DRIVER = """
import os, signal, subprocess, sys, threading
from tidemill.core.parent_watch import when_untied
from tidemill.pipeline.driver import end_at_once
below = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(900)"])
os.kill(below.pid, signal.SIGSTOP)
print(below.pid, flush=True)
when_untied(end_at_once)
threading.Event().wait()
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


_LOADED = """
import gc, sys
from tidemill.pipeline.worker_daemon import load_before_the_fork
load_before_the_fork()
assert gc.get_freeze_count() > 10_000, "each worker would copy what it could share"
assert "pandas" not in sys.modules, "tens of megabytes that are not needed"
before = set(sys.modules)
import pyarrow as pa, pyspark.worker, tidemill.pipeline.step, tidemill.pipeline.source
pa.array([1])
new = set(sys.modules) - before
assert not new, new
"""


def test_workers_share_what_they_need() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class _Query:
    """A streaming query that has taken some steps at each look, and then ends."""

    def __init__(self, *looks: list[tuple[int, int]]) -> None:
        self._looks = list(looks)
        self.recentProgress: list[SimpleNamespace] = []

    @property
    def lastProgress(self) -> SimpleNamespace | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def awaitTermination(self, timeout: float) -> bool:
        if not self._looks:
            return True
        for number, took_ms in self._looks.pop(0):
            done = SimpleNamespace(batchId=number, durationMs={"triggerExecution": took_ms})
            self.recentProgress.append(done)
        return False

    def exception(self) -> Exception:
        return RuntimeError("over")


def test_every_step_but_the_first_is_reported_once(capsys, monkeypatch) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from tidemill.pipeline import driver

    monkeypatch.setattr(driver, "dismiss_planners", lambda: None)
    with pytest.raises(RuntimeError, match="over"):
        driver.watch(_Query([], [(0, 9_000)], [(1, 200), (2, 210)], [], [(3, 40)]), None)
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    alive = [report["steps_ms"] for report in reports if report["event"] == "alive"]
    assert alive == [[], [], [200, 210], [], [40]]
