"""Another system's server, to compare with: started, watched, and never left behind.

Run as `python -m tidemill.cli.bench.tied_server SIGNAL PROGRAM …`, a guard between us and that server: it
starts the program and, when the pipe to it closes, ends it with the signal. Such servers know nothing of
our ties, so this also holds when a measurement is killed. `TiedServer` is the end of it that measurements
hold.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemill.cli.bench.settling import wait_for
from tidemill.cli.ties import untie
from tidemill.core.errors import StorageError
from tidemill.core.processes import children, descendants
from tidemill.core.ties import when_untied

_END_S = 30.0


class TiedServer:
    """A server program with its guard. What it says goes to a file. `user` is whom it runs as, if not us."""

    def __init__(
        self, command: Sequence[str], log: Path, ended_by: signal.Signals, user: str | None = None
    ) -> None:
        self._log = log
        guard = [sys.executable, "-m", "tidemill.cli.bench.tied_server", ended_by.name, user or "", *command]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                guard, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )

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

    def kill(self) -> None:
        """SIGKILL to the server itself; the guard ends with it."""
        for pid in children(self._guard.pid):
            os.kill(pid, signal.SIGKILL)
        self._guard.wait(_END_S)

    def stop(self) -> None:
        untie(self._guard)
        self._guard.wait(_END_S)


def _guard(ended_by: signal.Signals, user: str, command: list[str]) -> int:
    whom = {"user": user, "group": user, "extra_groups": ()} if user else {}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, **whom)  # type: ignore[call-overload]
    when_untied(lambda: server.send_signal(ended_by))
    return int(server.wait())


if __name__ == "__main__":
    sys.exit(_guard(signal.Signals[sys.argv[1]], sys.argv[2], sys.argv[3:]))
