"""A real `tidemill serve`, started, waited for, stopped and killed by tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tidemill.broker.embedded import open_broker
from tidemill.core.clock import stopwatch_s
from tidemill.core.model import TopicType
from tidemill.core.processes import children

# How long to look before giving up: tests run side by side on small machines, and waiting costs nothing when
# all is well.
PATIENCE_S = 120.0
_STOP_SECONDS = 60.0
_pause = threading.Event()  # never set


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Look again and again until something holds; the test fails when it does not in time."""
    until_s = stopwatch_s() + seconds
    while not is_so():
        assert stopwatch_s() < until_s, f"waited {seconds} s in vain: {what}"
        _pause.wait(0.02)


class Served:
    """One data directory behind one port; on the embedded runner, unless a flag asks for Spark."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self._flags = flags if "--pipeline" in flags else (*flags, "--pipeline", "embedded")
        self.program: tuple[str, ...] = ("-m", "tidemill.cli.main")
        self._log = directory.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(
        self,
        *topics: str,
        delay_topics: tuple[str, ...] = (),
        groups: tuple[str, ...] = (),
        fifo_groups: tuple[str, ...] = (),
        attempts_max: int = 16,
        backoff: str = "",
    ) -> None:
        """Make topics and groups in the directory before it is served."""
        with open_broker(self.directory) as broker:
            for topic in topics:
                broker.topics.create(topic)
            for topic in delay_topics:
                broker.topics.create(topic, TopicType.DELAY)
            for group in groups:
                broker.receiver.set_group(group, backoff=backoff)
            for group in fifo_groups:
                broker.receiver.set_group(group, is_fifo=True, attempts_max=attempts_max, backoff=backoff)

    def start(self) -> Served:
        command = [sys.executable, *self.program, "serve", "--data", str(self.directory)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *self._flags], stdout=log, stderr=log
            )
        wait_until(self.is_ready, f"the endpoint at {self.endpoint}; {self.log()}")
        return self

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/healthz", timeout=1) as answer:
                return bool(json.load(answer)["status"] == "open")
        except urllib.error.HTTPError as refused:
            refused.close()  # it holds the answer, and a later test would be blamed for that
            return False
        except (OSError, ValueError):
            return False

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def broker_pids(self) -> list[int]:
        """The children of the supervisor: the broker process."""
        assert self.process is not None
        return children(self.process.pid)

    def stop(self) -> int:
        """Stop in order; returns the exit code."""
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_SECONDS)

    def kill_broker(self) -> None:
        for pid in self.broker_pids():
            os.kill(pid, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
