"""The demo's own `tidemill serve`: started on a free port, killed in the middle, stopped in the end.

Owns the child process, which ends with the demo, however that ends, and its log file. The kills are `kill -9`
of the pipeline's driver and of the broker process itself; the broker and the supervisor (the process started
here) restart them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path

from tidemill.cli.child_processes import tied_serve, untie
from tidemill.cli.demo.story import LEAD_MS, TICK_MS
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.core.processes import children, command_line, descendants

_OPEN_SECONDS = 30.0
_STOP_SECONDS = 40.0
_LOOK_SECONDS = 0.02
_DRIVER = "tidemill.pipeline.driver"
_ADDRESS = re.compile(r"serves on (\S+:\d+)")


class Serving:
    """One serve process on one directory."""

    def __init__(self, directory: Path, log: Path, pipeline: str) -> None:
        self._log = log
        flags = ["--data", str(directory), "--port", "0", "--flight-port", "-1", "--pipeline", pipeline]
        flags += ["--lead", f"{LEAD_MS}ms", "--tick", f"{TICK_MS}ms"]
        log.unlink(missing_ok=True)  # an earlier serve had another address
        self._process = tied_serve(flags, log)
        self.endpoint = self._wait_for_address()

    def _wait_for_address(self) -> str:
        pause = threading.Event()
        until_s = stopwatch_s() + _OPEN_SECONDS
        while not (found := _ADDRESS.search(self._log.read_text())):
            if self._process.poll() is not None or stopwatch_s() > until_s:
                self.stop()
                raise StorageError(f"the broker failed to start: {last_words(self._log)}")
            pause.wait(_LOOK_SECONDS)
        return found[1]

    def kill_spark(self) -> int:
        """`kill -9` the pipeline's driver; returns its process id."""
        for pid in descendants(self._process.pid):
            if _DRIVER in command_line(pid):
                os.kill(pid, signal.SIGKILL)
                return pid
        raise StorageError(f"the broker has no pipeline process; see {self._log}")

    def kill_broker(self) -> int:
        """`kill -9` the broker process and wait until it is gone; returns its process id."""
        (pid,) = self._broker_pids()
        os.kill(pid, signal.SIGKILL)
        pause = threading.Event()
        while pid in self._broker_pids():
            pause.wait(_LOOK_SECONDS)
        return pid

    def _broker_pids(self) -> list[int]:
        """The children of the supervisor."""
        return children(self._process.pid)

    def stop(self) -> None:
        """Stop it in order, or at any price."""
        if self._process.poll() is None:
            self._process.terminate()
        untie(self._process)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def last_words(log: Path) -> str:
    """The last line that a serve has written."""
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it printed nothing"
