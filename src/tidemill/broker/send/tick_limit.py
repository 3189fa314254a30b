"""A limit on how many messages of one topic fall due in one tick; sends beyond it are refused.

Owns the check. Off by default, and then it costs nothing. Counted is what is pending; a message that is moved
(reschedule, replace) is counted where it goes but never refused.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tidemill.core.config import BrokerSettings
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.model import SEQ_MAX
from tidemill.log.arrays import I64, Flags
from tidemill.store.due_counts import TickCounts
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

Planned = Counter[tuple[int, int]]  # by topic id and tick: what one call is about to store


class TickLimit:
    """Refuses what would crowd a tick. Call under the log writer's lock."""

    def __init__(self, store: MessageStore, settings: BrokerSettings) -> None:
        self._store = store
        self._limit = settings.due_per_tick_max
        self._counts = TickCounts(settings.tick_ms)
        self.is_on = self._limit > 0
        if self.is_on:
            for _, rows in store.scan_pending(None, 0, SEQ_MAX):
                self._counts.add(rows["topic_id"], rows["deliver_at_ms"], 1)
            store.due_counts.ticks = self._counts

    def take(self, topic: Topic, due_ms: int, planned: Planned) -> None:
        """Count one more message into `planned`, or `TooManyRequestsError`."""
        key = topic.id, due_ms // self._counts.tick_ms
        if self._counts.count(topic.id, due_ms) + planned[key] >= self._limit:
            tick_ms = self._counts.tick_ms
            raise TooManyRequestsError(
                f"too many messages of topic {topic.name!r} fall due in the {tick_ms} ms from "
                f"{due_ms // tick_ms * tick_ms} on (limit {self._limit} a tick); "
                "retry later or choose another time"
            )
        planned[key] += 1

    def crowded(self, topic_ids: I64, deliver_at_ms: I64) -> Flags:
        """Which messages belong to a tick that all of them together would take over the limit."""
        keys, which, counts = np.unique(
            self._counts.keys(topic_ids, deliver_at_ms), return_inverse=True, return_counts=True
        )
        stored = np.fromiter(map(self._counts.count_of, keys.tolist()), np.int64, len(keys))
        crowded: Flags = (stored + counts > self._limit)[which]
        return crowded
