"""The other timer store: timers as sorted keys in RocksDB.

A timer's key begins with its due time, so what is due is one range, there is no ring to overrun and nothing
is ever rolled. Absorbing is one write: keys first, and in the last batch with them the cursor.

    write    keys of the step, then key and cursor in one batch, then one sync
    due      a range scan from the cursor's tick, or from behind the last key handed over
    drop     one range deletion for all ticks that were drained since the last one, not in every step

Owns the cursor that counts, because it is in the same batch; the shard's cursor file is a copy for those who
cannot open RocksDB. Leaves to others: RocksDB itself (`log/sorted_keys.py`), ready files.

Invariant: a key whose seq the cursor has not absorbed is what a step left that did not end. No caller gets
it, and the step that is done again puts the same key in its place.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.core.model import NEVER_ROLLED
from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.log.sorted_keys import SortedKeys
from tidemill.timer.cursor import FAR_FUTURE_TICK, Cursor, StoreMark
from tidemill.timer.rocksdb.rocks_format import (
    KEY_BYTES,
    NO_KEY,
    TIMER_KEY,
    TimerKeys,
    decode_note,
    encode_note,
    first_key_at,
    key_after,
    timer_keys,
)
from tidemill.timer.settings import TimerSettings
from tidemill.timer.stages.admit import Batch
from tidemill.timer.timer_store import Drained
from tidemill.timer.wheel.timer_log_format import NO_POSITION

ROCKS_NAME = "rocksdb"

_NO_SEQS = np.empty(0, np.int64)
_NO_KEYS = np.empty(0, TIMER_KEY)
# So many drained keys may lie about. A range deletion in every step would make every scan sort through them.
_DRAINED_KEYS_MAX = 1 << 17
_END_OF_TIME_MS = FAR_FUTURE_TICK
_LOOK_KEYS = 256


class RocksStore:
    """Timers in RocksDB. Implements `TimerStore`."""

    def __init__(self, disk: Disk, directory: Path, settings: TimerSettings) -> None:
        self._disk = disk
        self._directory = directory / ROCKS_NAME
        self._tick_ms = settings.tick_ms
        self._keys: SortedKeys | None = None
        self._is_sound = False
        self._cursor = Cursor()
        self._resume_key = self._next_resume_key = NO_KEY
        self._absorbed: TimerKeys = _NO_KEYS
        # A new store may have found any number of them, and begins by clearing up.
        self._drained_count = _DRAINED_KEYS_MAX

    def truncate(self, cursor: Cursor) -> Cursor:
        self._absorbed = _NO_KEYS
        if self._is_sound:
            return self._cursor
        self.close()  # after an error RocksDB takes no more writes until it is opened again
        note = self._opened.note()
        if note is None:
            raise CorruptionError("the RocksDB timer store has lost its cursor")
        self._cursor, self._resume_key = decode_note(note)
        self._is_sound = True
        return self._cursor

    def due(self, cursor: Cursor, until_tick: int, due_max: int) -> Drained:
        self._next_resume_key = self._resume_key
        if cursor.next_due_tick is None or cursor.next_due_tick >= until_tick:
            return _never_rolled(_NO_SEQS, until_tick, cursor.resume_position)
        first = key_after(self._resume_key) if cursor.is_inside_slot else self._key_at(cursor.next_due_tick)
        found = self._opened.scan(first, self._key_at(until_tick), due_max + 1).view(TIMER_KEY)
        drained = found[:due_max]
        self._drained_count += len(drained)
        seqs = _known_seqs(drained, cursor)
        # By seq, because that is how the entries lie that they lead to.
        seqs.sort()
        self._next_resume_key = NO_KEY
        if len(found) <= due_max:
            return _never_rolled(seqs, until_tick, NO_POSITION)
        last_tick, next_tick = (int(ms) // self._tick_ms for ms in found["due_ms"][-2:])
        if next_tick > last_tick:
            return _never_rolled(seqs, next_tick, NO_POSITION)
        # The slot goes on behind what a step may hand over: come back for the rest.
        self._next_resume_key = drained[-1].tobytes()
        return _never_rolled(seqs, last_tick, int(drained["seq"][-1]))

    def absorb(self, batch: Batch, open_tick: int) -> int | None:
        if not len(batch):
            return None
        self._absorbed = timer_keys(batch)
        earliest = int(self._absorbed["due_ms"][0]) // self._tick_ms
        assert earliest >= open_tick
        return earliest

    def next_due(self, cursor: Cursor, from_tick: int) -> int | None:
        first = self._key_at(from_tick)
        while len(found := self._opened.scan(first, first_key_at(_END_OF_TIME_MS), _LOOK_KEYS)):
            keys = found.view(TIMER_KEY)
            known = np.flatnonzero(keys["seq"] < cursor.seq)
            if len(known):
                return int(keys["due_ms"][known[0]]) // self._tick_ms
            first = key_after(found[-1].tobytes())
        return None

    def mark(self, tick: int) -> StoreMark:
        """Nothing: cursor and timers are in one batch."""
        return StoreMark()

    def commit(self, cursor: Cursor) -> None:
        self._is_sound = False
        self._opened.write(self._absorbed, encode_note(cursor, self._next_resume_key))
        self._cursor, self._resume_key = cursor, self._next_resume_key
        self._absorbed = _NO_KEYS
        self._is_sound = True

    def drop_behind(self, tick: int) -> None:
        if self._drained_count >= _DRAINED_KEYS_MAX:
            self._opened.drop(first_key_at(0), self._key_at(tick))
            self._drained_count = 0

    def close(self) -> None:
        self._is_sound = False
        keys, self._keys = self._keys, None
        if keys is not None:
            keys.close()

    @property
    def _opened(self) -> SortedKeys:
        if self._keys is None:
            self._keys = self._disk.sorted_keys(self._directory, KEY_BYTES)
        return self._keys

    def _key_at(self, tick: int) -> bytes:
        return first_key_at(tick * self._tick_ms)


def _never_rolled(seqs: I64, tick: int, resume_position: int) -> Drained:
    return Drained(seqs, np.full(len(seqs), NEVER_ROLLED, np.uint16), tick, resume_position)


def _known_seqs(keys: TimerKeys, cursor: Cursor) -> I64:
    """Seqs of the timers that the cursor has absorbed."""
    seqs: I64 = keys["seq"].astype(np.int64)
    return seqs[seqs < cursor.seq]
