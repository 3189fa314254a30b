"""How many messages of each topic fall due in each tick. Kept in memory, only while a limit asks for it.

Owns the counts of *pending* messages by (topic id, tick). `DueCounts` passes every change on, so they are in
step with the ledger. Nothing is saved: a broker that wants them counts what is pending when the store opens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tidemill.log.arrays import I64, U32

_TICK_BITS = 40  # ticks of 100 ms until the year 5454


class TickCounts:
    """Pending messages by topic and tick. Changed and read under the log writer's lock."""

    def __init__(self, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self._counts: dict[int, int] = {}

    def add(self, topic_ids: U32, deliver_at_ms: I64, sign: int) -> None:
        """Count messages in (`sign` 1) or out (-1)."""
        keys, counts = np.unique(self._keys(topic_ids, deliver_at_ms), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            left = self._counts.get(key, 0) + sign * count
            if left:
                self._counts[key] = left
            else:
                self._counts.pop(key, None)

    def count(self, topic_id: int, deliver_at_ms: int) -> int:
        """How many of a topic are due in the tick of a time."""
        return self._counts.get(topic_id << _TICK_BITS | deliver_at_ms // self.tick_ms, 0)

    def crowded_row(self, parts: Iterable[tuple[U32, I64]], limit: int) -> tuple[int, int] | None:
        """Topic id and time of a message with which some tick would hold more than `limit`, if there is one.

        `parts` are topic ids and times of messages that would come together.
        """
        keys = [self._keys(topic_ids, deliver_at_ms) for topic_ids, deliver_at_ms in parts]
        if not keys:
            return None
        distinct, counts = np.unique(np.concatenate(keys), return_counts=True)
        stored = np.fromiter((self._counts.get(key, 0) for key in distinct.tolist()), np.int64, len(distinct))
        over = np.flatnonzero(stored + counts > limit)
        if not len(over):
            return None
        key = int(distinct[over[0]])
        return key >> _TICK_BITS, (key & (1 << _TICK_BITS) - 1) * self.tick_ms

    def _keys(self, topic_ids: U32, deliver_at_ms: I64) -> I64:
        keys: I64 = topic_ids.astype(np.int64) << _TICK_BITS | deliver_at_ms // self.tick_ms
        return keys
