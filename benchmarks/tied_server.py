"""The server of a compared system: starts, monitors and always ends it.

Such servers know nothing of our ties, so each has a guard (`server_guard.py`) that does.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemill.cli.child_processes import start_tied, untie, wait_for
from tidemill.core.errors import StorageError
from tidemill.core.processes import descendants, is_alive, kill

_END_S = 30.0
_SOON_S = 0.005


class TiedServer:
    """A server program with its guard. What it says goes to a file. `user` is whom it runs as, if not us."""

    def __init__(
        self, command: Sequence[str], log: Path, ended_by: signal.Signals, user: str | None = None
    ) -> None:
        self._log = log
        self._command = [ended_by.name, user or "", *command]
        self._guard = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return start_tied("benchmarks.server_guard", self._command, self._log)

    def wait_until_open(self, name: str, is_open: Callable[[], bool]) -> None:
        """Return when `is_open` says so; an error with its words if it ends before that."""

        def look() -> bool:
            if self._guard.poll() is not None:
                said = self._log.read_text(errors="replace").strip()[-500:]
                raise StorageError(f"the {name} to compare with did not start: {said}")
            return is_open()

        wait_for(f"the {name} to compare with opens", look)

    def pids(self) -> list[int]:
        """The server's processes, without the guard."""
        return descendants(self._guard.pid)

    def kill_and_start(self) -> None:
        """SIGKILL to all processes of the server, then the same again; returns before that is open."""
        pids = self.pids()
        kill(pids)
        wait_for("a killed server ends", lambda: not any(map(is_alive, pids)), _SOON_S)
        untie(self._guard)
        self._guard.wait(_END_S)
        self._guard = self._started()

    def stop(self) -> None:
        untie(self._guard)
        self._guard.wait(_END_S)
