"""A `tidemill serve` in a process of its own, for benchmarks and the demo: started, stopped or killed.

Owns the supervisor's process and a free port. Its output goes to a file beside the data directory. It runs as
`python -m tidemill.cli.child_broker --data …`, with the flags of `serve`, and shuts down when its parent
ends, also when that is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.cli.child_processes import start_tied, untie, wait_for
from tidemill.client.client import Client
from tidemill.core.errors import StorageError, TidemillError
from tidemill.core.parent_watch import when_untied
from tidemill.core.processes import children, command_line, descendants, is_alive, kill

_SERVE = "tidemill.cli.child_broker"
_STOP_S = 60.0
_SOON_S = 0.005


class ChildBroker:
    """One data directory behind one port, which stays the same when it is started again."""

    def __init__(self, directory: Path, *flags: str) -> None:
        port = _free_port()
        self.directory = directory
        self.endpoint = f"127.0.0.1:{port}"
        self._flags = ("--data", str(directory), "--port", str(port), *flags)
        self._log = directory.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        self._process = start_tied(_SERVE, self._flags, self._log)
        self.wait_until_open()

    def kill_and_start(self) -> None:
        """SIGKILL to all processes of it, then the same again; returns before that is open."""
        pids = self.pids()
        kill(pids)
        wait_for("a killed broker ends", lambda: not any(map(is_alive, pids)), _SOON_S)
        if self._process is not None:
            self._process.wait()
            untie(self._process)
        self._process = start_tied(_SERVE, self._flags, self._log)

    def wait_until_open(self) -> None:
        with Client(self.endpoint, retry_for=0) as client:
            wait_for("the broker opens", lambda: self._is_open(client))

    def _is_open(self, client: Client) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise StorageError(f"the broker failed to start: {self.last_line()}")
        try:
            client.status()
        except TidemillError:
            return False
        return True

    def last_line(self) -> str:
        """The last line of its output."""
        lines = self._log.read_text().strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "it printed nothing"

    def stop(self) -> int:
        """In order; by force when that takes too long. The exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        untie(self._process)
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def pids(self) -> list[int]:
        """All processes of it: the supervisor and what is below."""
        return [] if self._process is None else [self._process.pid, *descendants(self._process.pid)]

    def broker_pids(self) -> list[int]:
        """The supervisor's children."""
        return [] if self._process is None else children(self._process.pid)

    def kill_broker(self) -> int:
        """SIGKILL to the broker process; returns its process id when it is gone."""
        pids = self.broker_pids()
        kill(pids)
        wait_for("a killed broker ends", lambda: not set(pids) & set(self.broker_pids()), _SOON_S)
        return pids[0]

    def kill_below(self, name: str) -> int:
        """SIGKILL to the process below the supervisor whose command line has this name; its process id."""
        for pid in self.pids()[1:]:
            if name in command_line(pid):
                os.kill(pid, signal.SIGKILL)
                return pid
        raise StorageError(f"the broker has no process {name}; see {self._log}")

    def kill_supervisor(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            untie(self._process)


@contextmanager
def serving(directory: Path, server: str = "auto") -> Iterator[str]:
    """The endpoint of a broker that serves this directory until the block ends; its runner is embedded."""
    serve = ChildBroker(directory, "--flight-port", "0", "--pipeline", "embedded", "--server", server)
    try:
        serve.start()
        yield serve.endpoint
    finally:
        serve.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve() -> None:
    """The child's part."""
    from tidemill.cli.main import run

    when_untied(lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.exit(run(["serve", *sys.argv[1:]]))


if __name__ == "__main__":
    _serve()
