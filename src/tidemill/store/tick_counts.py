"""How many messages of each topic fall due in each tick. Kept in memory, only while a limit asks for it.

Owns the counts of *pending* messages by (topic id, tick). `DueCounts` passes every change on, so they are in
step with the ledger. Nothing is saved: a broker that wants them counts what is pending when the store opens.
"""

from __future__ import annotations

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
        keys, counts = np.unique(self.keys(topic_ids, deliver_at_ms), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            left = self._counts.get(key, 0) + sign * count
            if left:
                self._counts[key] = left
            else:
                self._counts.pop(key, None)

    def count(self, topic_id: int, deliver_at_ms: int) -> int:
        """How many of a topic are due in the tick of a time."""
        return self._counts.get(topic_id << _TICK_BITS | deliver_at_ms // self.tick_ms, 0)

    def count_of(self, key: int) -> int:
        """The same by the key of a topic and a tick."""
        return self._counts.get(key, 0)

    def keys(self, topic_ids: I64 | U32, deliver_at_ms: I64) -> I64:
        """The keys of topics and ticks."""
        keys: I64 = topic_ids.astype(np.int64) << _TICK_BITS | deliver_at_ms // self.tick_ms
        return keys
