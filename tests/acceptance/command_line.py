"""The command line, as a process and in the process of the test."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import tidemill
from tidemill.broker.embedded import open_broker
from tidemill.cli import main
from tidemill.cli.bench.measuring import wait_until_absorbed

_COMMAND = (sys.executable, "-m", "tidemill")


def run(*arguments: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `tidemill` to its end."""
    return subprocess.run(
        [*_COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def run_here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `tidemill` in this process, which costs no start of Python and no imports."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main.run([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def start(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A Python process that runs `code`; it prints, the test reads."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def one_line_on_stderr(result: subprocess.CompletedProcess[str]) -> str:
    """The complaint, which must be one line and no traceback."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tidemill: ")
    return lines[0]


def make_directory(directory: Path) -> None:
    """A data directory with something of everything: waiting, released, cancelled, received, grouped."""
    with open_broker(directory, segment_bytes=1 << 20, tick="100ms", lead="400ms") as broker:
        drafts = [tidemill.Draft("orders", b"far", delay_ms=3_600_000, keys=(f"k{i}",)) for i in range(20)]
        receipts = broker.send([*drafts, tidemill.Draft("orders", b"soon", delay_ms=0, tag="now")])
        broker.send([tidemill.Draft("plain", b"at once")])
        handle = receipts[0].handle
        assert handle is not None
        assert broker.cancel([handle]) == [tidemill.CancelAnswer.CANCELLED]
        second = receipts[1].handle
        assert second is not None
        broker.reschedule([second], by_ms=60_000)
        (delivery,) = broker.receive("orders", "workers", wait_ms=5_000)
        broker.ack([delivery.ack_token])
        wait_until_absorbed(broker)
