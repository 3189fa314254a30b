"""A read-only view of the TimerWheels: how full their slots are, whichever runner drives them.

Owns read-only maps of the shards' wheel files. It takes no lock and changes nothing: a slot that is being
written while it is read may show its old count or its new one, which is good enough for a picture.
Leaves to others: what the timers are (TimerLog), what is still pending (the ledger; a cancelled timer stays
in its slot until its tick comes).

Invariant: a count is given to the tick that its slot speaks for, so what a former lap left does not show.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from tidemill.core.errors import StorageError
from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.timer.settings import TimerSettings
from tidemill.timer.target import shard_directory
from tidemill.timer.wheel.wheel_format import SLOT, SLOT_BYTES, Slots, speaks_for
from tidemill.timer.wheel.wheel_store import WHEEL_NAME


class WheelView:
    """Counts by tick over all shards. One user at a time."""

    def __init__(self, disk: Disk, timer_directory: Path, settings: TimerSettings) -> None:
        self._disk = disk
        self._directory = timer_directory
        self._settings = settings

    def counts(self, from_tick: int, until_tick: int) -> I64:
        """How many timers the slots of `[from_tick, until_tick)` hold; at most one lap of them."""
        count = min(until_tick - from_tick, self._settings.slots)
        ticks = np.arange(from_tick, from_tick + count, dtype=np.int64)
        total = np.zeros(count, np.int64)
        for shard in range(self._settings.shards):
            total += self._counts_of(shard, ticks)
        return total

    @property
    def has_wheel(self) -> bool:
        """Whether there is a wheel to look at; another timer store has none."""
        return any(self._disk.exists(self._path(shard)) for shard in range(self._settings.shards))

    def _path(self, shard: int) -> Path:
        return shard_directory(self._directory, shard) / WHEEL_NAME

    def _counts_of(self, shard: int, ticks: I64) -> I64 | int:
        """The counts in the wheel of a shard; 0 while it is being made, or was set aside in a takeover."""
        try:
            file = self._disk.open(self._path(shard))
        except (StorageError, OSError):
            return 0
        with closing(file):
            if file.size() != self._settings.slots * SLOT_BYTES:
                return 0
            return _counts_in(file.map(file.size()).view(SLOT), ticks)


def _counts_in(slots: Slots, ticks: I64) -> I64:
    first = int(ticks[0]) % len(slots) if len(ticks) else 0
    head = slots[first : first + len(ticks)]
    rows = head if len(head) == len(ticks) else np.concatenate((head, slots[: len(ticks) - len(head)]))
    return np.where(speaks_for(rows, ticks), rows["num"], 0).astype(np.int64)
