"""Child processes of commands (a broker, a measurement, the demo), which never outlive them.

Owns the parent's end of the pipe (`core/parent_watch.py` has the other). The parent holds a pipe to the
standard input of what it starts (`start_tied`), and cleans up when it is asked to end (`end_in_order`). The
child ends when that pipe closes, which also happens when the parent is killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError

_PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.1


def start_tied(module: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Run a module of ours, which ends with us. What it prints is added to a file.

    It is out of reach of a terminal's Ctrl-C: that is for us, and we stop it when we are done with it.
    """
    command = [sys.executable, "-m", module, *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )


def untie(process: subprocess.Popen[bytes]) -> None:
    """Let go of it: if it still runs, it ends in order."""
    if process.stdin is not None:
        process.stdin.close()


def wait_for(what: str, is_so: Callable[[], bool], every_s: float = _LOOK_EVERY_S) -> None:
    """Look again and again until it is so: other processes offer nothing to wait on."""
    until_s = stopwatch_s() + _PATIENCE_S
    while not is_so():
        if stopwatch_s() > until_s:
            raise StorageError(f"waited {_PATIENCE_S:.0f} s in vain: {what}")
        threading.Event().wait(every_s)


def end_in_order() -> None:
    """From now on SIGTERM and SIGHUP end this command as Ctrl-C does: what it started and made goes first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
