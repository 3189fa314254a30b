"""Child processes of commands (a broker, a measurement, the demo), which never outlive them.

Owns the parent's end of the pipe (`core/parent_watch.py` has the other). The parent holds a pipe to the
standard input of what it starts (`tied_serve`), and cleans up when it is asked to end (`end_in_order`). The
child ends when that pipe closes, which also happens when the parent is killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_SERVE = "tidemill.cli.tied_serve"


def tied_serve(flags: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `tidemill serve` with these flags; it ends with us. What it says is added to a file.

    It is out of reach of a terminal's Ctrl-C: that is for us, and we stop it when we are done with it.
    """
    command = [sys.executable, "-m", _SERVE, *flags]
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )


def untie(process: subprocess.Popen[bytes]) -> None:
    """Let go of it: if it still runs, it ends in order."""
    if process.stdin is not None:
        process.stdin.close()


def end_in_order() -> None:
    """From now on SIGTERM and SIGHUP end this command as Ctrl-C does: what it started and made goes first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
