"""Measures what ten million pending messages cost: memory, disk beside them, and opening after a kill.

Each part runs in a process of its own, so that nothing a measurement left behind is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tidemill.cli.bench.workload import Scale
from tidemill.core.errors import StorageError

_CHILD = (sys.executable, "-m", "tidemill.cli.bench.child")


def measure_pending(directory: Path, scale: Scale) -> dict[str, float]:
    """index_bytes_per_pending, memory_growth_10m_mb and reopen_10m_s."""
    where = directory / "pending"
    counts = (scale.few_count, scale.pending_count, scale.tail_count, scale.tidy_s)
    arguments = ("fill", str(where), *map(str, counts))
    with subprocess.Popen(
        (*_CHILD, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C is for us alone
    ) as filler:
        assert filler.stdout is not None
        try:
            figures = _read(filler.stdout.readline())
            _read(filler.stdout.readline())
        finally:
            filler.kill()  # SIGKILL, with the directory open
    done = subprocess.run(
        (*_CHILD, "reopen", str(where)),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,
    )
    reopened = _read(done.stdout)
    if reopened["pending"] != scale.pending_count + 1:
        raise StorageError(
            f"{scale.pending_count + 1} messages should be pending after the kill, "
            f"{reopened['pending']} are; keep the directory with --data and report this"
        )
    return {**figures, "reopen_10m_s": reopened["reopen_10m_s"]}


def _read(line: str) -> dict[str, float]:
    if not line.strip():
        raise StorageError("a measuring process ended before it was done; its message is above")
    content: dict[str, float] = json.loads(line)
    return content
