"""A simulated clock whose time is kept in the data directory, so that a restart goes on where it was.

Owns the file pair `clock.0/1`: JSON, `now_ms`. A time is written before the clock shows it, so nothing that
was stamped with a time is ever read back at an earlier one. The writes of an advance are left to the kernel,
which keeps them when the process is killed; the last one is synced before the advance is answered.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tidemill.core.clock import SimulatedClock
from tidemill.core.errors import CorruptionError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk

CLOCK_NAME = "clock"
CLOCK_FORMAT = 1


def decode_clock(content: bytes) -> int:
    """The time that was kept, Unix ms."""
    return int(json.loads(content)["now_ms"])


class KeptClock(SimulatedClock):
    """Begins at the time that the directory kept, else at `now_ms`. Writes nothing before `keep`."""

    def __init__(self, disk: Disk, directory: Path, now_ms: int) -> None:
        self._checkpoint = Checkpoint(disk, directory, CLOCK_NAME, CLOCK_FORMAT, decode_clock)
        self._saving = threading.Lock()  # protects _checkpoint
        content = self._checkpoint.load()
        if content is None and self._checkpoint.is_damaged():
            raise CorruptionError(
                f"{directory / CLOCK_NAME}.0 and .1 are damaged or hold something else, so the simulated "
                "time is not known. Nothing was changed. Restore one of them from a backup, or remove both "
                "to begin with the real time"
            )
        super().__init__(now_ms if content is None else decode_clock(content))

    def advance_to(self, now_ms: int) -> None:
        with self._saving:
            self._save(max(now_ms, self.now_ms()), sync=False)
            super().advance_to(now_ms)

    def keep(self) -> None:
        with self._saving:
            self._save(self.now_ms(), sync=True)
            self._checkpoint.keep_twice()

    def _save(self, now_ms: int, *, sync: bool) -> None:
        self._checkpoint.save(json.dumps({"now_ms": now_ms}).encode(), sync=sync)
