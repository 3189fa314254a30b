"""A limit on how many messages of one topic fall due in one tick; sends beyond it are refused.

Owns the check, for single sends and for whole columns. Off by default, and then it costs nothing. Counted is
what is pending; a message that is moved (reschedule, replace) is counted where it goes but never refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidemill.core.config import BrokerSettings
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.model import SEQ_MAX
from tidemill.log.arrays import I64, U32
from tidemill.store.message_store import MessageStore
from tidemill.store.pending_scan import scan_pending
from tidemill.store.tick_counts import TickCounts
from tidemill.store.topics import Topic

Planned = Counter[tuple[int, int]]  # by topic id and tick: what one call is about to store


class TickLimit:
    """Refuses what would crowd a tick. Call under the log writer's lock."""

    def __init__(self, store: MessageStore, settings: BrokerSettings) -> None:
        self._store = store
        self._limit = settings.due_per_tick_max
        self._counts = TickCounts(settings.tick_ms)
        if self._limit:
            for _, rows in scan_pending(store, None, 0, SEQ_MAX):
                self._counts.add(rows["topic_id"], rows["deliver_at_ms"], 1)
            store.indexes.due_counts.ticks = self._counts

    @property
    def is_on(self) -> bool:
        return self._limit > 0

    def take(self, topic: Topic, due_ms: int, planned: Planned) -> None:
        """Count one more message into `planned`, or `TooManyRequestsError`."""
        key = topic.id, due_ms // self._counts.tick_ms
        if self._counts.count(topic.id, due_ms) + planned[key] >= self._limit:
            raise self._refusal(topic.name, due_ms)
        planned[key] += 1

    def check(self, parts: Iterable[tuple[U32, I64]]) -> None:
        """`TooManyRequestsError` if messages with these topic ids and times, together, would crowd a tick."""
        crowded = self._counts.crowded_row(parts, self._limit)
        if crowded is not None:
            topic_id, due_ms = crowded
            topic = self._store.indexes.topics.by_id(topic_id)
            raise self._refusal(topic.name if topic is not None else "", due_ms)

    def _refusal(self, topic_name: str, due_ms: int) -> TooManyRequestsError:
        tick_ms = self._counts.tick_ms
        return TooManyRequestsError(
            f"too many messages of topic {topic_name!r} fall due in the {tick_ms} ms from "
            f"{due_ms // tick_ms * tick_ms} on (limit {self._limit} a tick); "
            "retry later or choose another time"
        )
