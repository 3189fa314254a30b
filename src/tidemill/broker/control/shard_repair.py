"""Shards of the timer that are damaged: noted where one is found, built again where the wheel is turned.

Owns the list between the two, which are different threads: the releaser meets a damaged ready file, or a
sweep finds messages that a shard should have handed over; the timer's service builds the shard again.

Invariant: a shard stays on the list until it is built again. As long as any is on it, nothing counts as
handed over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tidemill.log.arrays import I64
from tidemill.store.damage import Derived, Repairs
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore

_LOOK_ROWS = 1 << 20


class ShardRepair:
    """Which shards are to be built again, and why. Thread-safe."""

    def __init__(self, shards: int, repairs: Repairs, wake: Callable[[], None]) -> None:
        """`wake` makes the timer's service look."""
        self._shards = shards
        self._repairs = repairs
        self._wake = wake
        self._lock = threading.Lock()  # protects the list
        self._damaged: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._damaged)

    def note(self, shard: int, why: str) -> None:
        """A shard is damaged."""
        with self._lock:
            self._damaged.setdefault(shard, why)
        self._wake()

    def note_lost(self, seqs: I64) -> None:
        """Due messages that their shards should have handed over, and did not."""
        for shard, count in zip(*np.unique(seqs % self._shards, return_counts=True), strict=True):
            self.note(int(shard), f"{count} due messages were missing from it")

    def listed(self) -> dict[int, str]:
        with self._lock:
            return self._damaged.copy()

    def is_done(self, built: Mapping[int, str]) -> None:
        """These shards were built again."""
        with self._lock:
            for shard in built:
                self._damaged.pop(shard, None)

    def report(self, directory: Path, why: str) -> None:
        """A shard is built again: count it, and say why."""
        self._repairs.add(Derived.TIMER, directory, f"the timer's shard ({why})", 1)


def first_pending(store: MessageStore) -> int:
    """A seq below which nothing is pending; the writer lock is held for a bounded part at a time."""
    ledger, first = store.ledger, 0
    while True:
        with store.read():
            first = max(first, ledger.head_seq)
            end = min(ledger.next_seq, first + _LOOK_ROWS)
            if first >= end:
                return first
            pending = np.flatnonzero(ledger.range_states(first, end) == State.PENDING)
        if len(pending):
            return first + int(pending[0])
        first = end
