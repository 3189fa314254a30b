"""The TimerWheel of one shard: a ring of slots in a sparse file, one slot per tick.

Owns the wheel file. Reads slots by tick through a read-only map and writes them scattered.
Leaves to others: which slots are pending (the cursor), what the positions lead to (the TimerLog).

Invariants:
- a read returns a row for every tick asked, valid or not; `speaks_for` says which;
- a slot is written only where the file already has disk space, because a full disk found by a write
  through a map would end the process instead of raising `DiskFullError`;
- a slot is read through the map only where the file has disk space too: a file system in memory (tmpfs) gives
  a hole its space as soon as it is looked at through a map, and ends the process where there is none left.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.timer.wheel.wheel_format import SLOT, SLOT_BYTES, Slots, speaks_for

# Disk space is claimed in pieces of this many slots (256 KiB), so a wheel in little use stays small.
_PIECE_SLOTS = 8192
# A search for the next pending slot looks at this many first, then at twice as many, and so on.
_SEARCH_SLOTS = 512


class Wheel:
    """Slots by tick. One user at a time, under the shard's lock."""

    def __init__(self, disk: Disk, path: Path, slots: int) -> None:
        self._slots = slots
        is_new = not disk.exists(path)
        self._file = disk.open(path, create=True)
        self.is_new = not self._file.size()  # until it is synced: no slot of an earlier time is in it
        if self._file.size() != slots * SLOT_BYTES:
            if self._file.size() and not is_new:
                raise CorruptionError(f"{path}: the wheel has a wrong size; delete the timer directory")
            self._file.truncate(slots * SLOT_BYTES)
            self._file.sync()
            disk.sync_dir(path.parent)
        self._table: Slots = self._file.map(slots * SLOT_BYTES).view(SLOT)
        self._claimed: set[int] = set()
        # Which pieces were looked at, and which of them were never written. Others cannot change that: we
        # hold the shard's lock. Space is claimed a whole piece at a time, so one written slot vouches for it.
        pieces = -(-slots // _PIECE_SLOTS)
        self._is_known = np.zeros(pieces, np.bool_)
        self._is_hole = np.zeros(pieces, np.bool_)

    def read(self, ticks: I64) -> Slots:
        """A copy of the rows for `ticks`."""
        numbers = ticks % self._slots
        pieces = numbers // _PIECE_SLOTS
        unknown = ~self._is_known[pieces]
        if unknown.any():
            self._look_at(np.unique(pieces[unknown]).tolist())
        in_hole = self._is_hole[pieces]
        if not in_hole.any():
            return self._table.take(numbers)
        rows = np.zeros(len(numbers), SLOT)
        rows[~in_hole] = self._table.take(numbers[~in_hole])
        return rows

    def read_range(self, from_tick: int, until_tick: int) -> Slots:
        """A copy of the rows for `[from_tick, until_tick)`, at most one lap."""
        count = until_tick - from_tick
        assert 0 <= count <= self._slots
        first = from_tick % self._slots
        if first + count <= self._slots and self._has_space(first, count):
            return self._table[first : first + count].copy()
        return self.read(np.arange(from_tick, until_tick, dtype=np.int64))

    def write(self, ticks: I64, rows: Slots) -> None:
        """Put a row for each tick, all within one lap; `DiskFullError` before any is put."""
        if not len(ticks):
            return
        numbers = ticks % self._slots
        self._claim(numbers)
        self._file.scatter(numbers, rows)

    def next_pending(self, from_tick: int, until_tick: int) -> int | None:
        """The first tick in the range whose slot holds units."""
        count = _SEARCH_SLOTS
        while from_tick < until_tick:
            stop = min(until_tick, from_tick + count)
            pending = speaks_for(self.read_range(from_tick, stop), np.arange(from_tick, stop))
            if pending.any():
                return from_tick + int(np.argmax(pending))
            from_tick, count = stop, count * 2
        return None

    def sync(self) -> None:
        """Make every slot written so far survive a power cut."""
        self._file.sync()
        self.is_new = False

    def close(self) -> None:
        self._table = np.empty(0, SLOT)
        self._file.close()

    def _has_space(self, first: int, count: int) -> bool:
        """Whether these slots may be looked at through the map."""
        pieces = slice(first // _PIECE_SLOTS, (first + count - 1) // _PIECE_SLOTS + 1)
        if not self._is_known[pieces].all():
            self._look_at([piece for piece in range(pieces.start, pieces.stop) if not self._is_known[piece]])
        return not self._is_hole[pieces].any()

    def _look_at(self, pieces: list[int]) -> None:
        """Find out, without the map, which of these pieces were never written."""
        for piece in pieces:
            data = self._file.read(piece * _PIECE_SLOTS * SLOT_BYTES, _PIECE_SLOTS * SLOT_BYTES)
            self._is_hole[piece] = not np.frombuffer(data, np.uint8).any()
            self._is_known[piece] = True

    def _claim(self, numbers: I64) -> None:
        """Put disk space behind every piece about to be written, by writing it back as it is."""
        for piece in np.unique(numbers // _PIECE_SLOTS).tolist():
            if piece not in self._claimed:
                offset = piece * _PIECE_SLOTS * SLOT_BYTES
                self._file.write(offset, self._file.read(offset, _PIECE_SLOTS * SLOT_BYTES))
                self._claimed.add(piece)
                self._is_known[piece], self._is_hole[piece] = True, False
