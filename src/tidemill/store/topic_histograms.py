"""Histograms by topic for the metrics, of which a bounded number of topics is named.

Owns which topics have a name of their own (`TopicNames`) and, for each histogram, the counts and the sum of
each. The first `TOPICS_NAMED_MAX` topics that are met are named; all others are counted together. A topic
that is deleted gives its name's place to one that is met later. What is noted is kept as it came, as arrays,
and counted when enough has come together or the counts are read: a send or a release of few messages costs an
append to a list.

Invariants: what was counted with the others is never counted under a name later, so a counter only grows;
the memory is bounded, whatever the number of topics (but for two bytes for each topic id that was ever met).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.core.limits import DAY_MS, MINUTE_MS
from tidemill.log.arrays import I64
from tidemill.store.topics import TopicTable

TOPICS_NAMED_MAX = 100
OTHER_TOPICS = "(other)"  # no topic can have this name

_HOUR_MS = 60 * MINUTE_MS
DELAY_BOUNDS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *(MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 30 * MINUTE_MS),
    *(_HOUR_MS, 3 * _HOUR_MS, 12 * _HOUR_MS),
    *(DAY_MS, 3 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 90 * DAY_MS),
    *(365 * DAY_MS, 3_650 * DAY_MS),
)
LATENESS_BOUNDS_MS = (0, 1, 2, 5, 10, 50, 100, 500, 1_000, 10_000, 60_000)

# Counted when so many rows, or so many parts, have come together.
_ROWS_KEPT_MAX = 1 << 14
_PARTS_KEPT_MAX = 1 << 10
# With more rows than this for each topic, topics are counted one after the other.
_ROWS_OF_A_TOPIC = 1 << 10
_OTHERS = 0
_UNMET, _GONE = -1, -2


class TopicNames:
    """Which topics are named. What says so takes `lock`; the histograms share it."""

    def __init__(self, topics: Callable[[], TopicTable], named_max: int = TOPICS_NAMED_MAX) -> None:
        self.lock = threading.Lock()  # protects all below, and the histograms
        self.slot_count = named_max + 1
        self._topics = topics
        self._slot_of_topic: npt.NDArray[np.int16] = np.full(64, _UNMET, np.int16)
        self._topic_of_slot: list[int | None] = [None] * self.slot_count
        self._forgets: list[Callable[[int], None]] = []

    def when_gone(self, forget: Callable[[int], None]) -> None:
        """Call `forget` with a slot that a deleted topic had and another is about to get."""
        self._forgets.append(forget)

    def slots(self, topic_ids: npt.NDArray[np.integer]) -> I64:
        """Where each topic is counted: 0 with the others. Call under the lock."""
        highest = int(topic_ids.max(initial=0))
        if highest >= len(self._slot_of_topic):
            grown = np.full(2 * highest + 2, _UNMET, np.int16)
            grown[: len(self._slot_of_topic)] = self._slot_of_topic
            self._slot_of_topic = grown
        found = self._slot_of_topic[topic_ids]
        if (found == _UNMET).any():
            for topic_id in np.unique(topic_ids[found == _UNMET]).tolist():
                self._slot_of_topic[topic_id] = self._new_slot(topic_id)
            found = self._slot_of_topic[topic_ids]
        slots: I64 = np.maximum(found, _OTHERS).astype(np.int64)
        return slots

    def named(self) -> list[tuple[int, str]]:
        """Slot and name of every topic that is named and still there. Call under the lock."""
        found = []
        for slot, topic_id in enumerate(self._topic_of_slot):
            topic = None if topic_id is None else self._topics().by_id(topic_id)
            if topic is not None:
                found.append((slot, topic.name))
        return found

    def label_of(self, topic_id: int) -> str | None:
        """The name under which a topic is counted, None where it was deleted; for one that had been named."""
        with self.lock:
            slot = int(self.slots(np.array([topic_id]))[0])
            if slot == _OTHERS:
                return OTHER_TOPICS if self._slot_of_topic[topic_id] != _GONE else None
            topic = self._topics().by_id(topic_id)
            return None if topic is None else topic.name

    def _new_slot(self, topic_id: int) -> int:
        topics = self._topics()
        if topics.by_id(topic_id) is None:
            return _OTHERS
        for slot in range(1, self.slot_count):
            held_by = self._topic_of_slot[slot]
            if held_by is not None and topics.by_id(held_by) is not None:
                continue
            if held_by is not None:
                self._slot_of_topic[held_by] = _GONE
                for forget in self._forgets:
                    forget(slot)
            self._topic_of_slot[slot] = topic_id
            return slot
        return _OTHERS


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """One topic's histogram. `counts` has one more than there are bounds; `topic` None: all the others."""

    topic: str | None
    counts: list[int]
    sum_ms: float


class TopicHistogram:
    """Milliseconds by topic in fixed buckets. Thread-safe."""

    def __init__(self, names: TopicNames, bounds_ms: tuple[int, ...]) -> None:
        self.bounds_ms = bounds_ms
        self._names = names
        self._bounds: I64 = np.array(bounds_ms, np.int64)
        self._counts: I64 = np.zeros((names.slot_count, len(bounds_ms) + 1), np.int64)
        self._sums = np.zeros(names.slot_count)
        self._parts: list[tuple[npt.NDArray[np.integer], I64]] = []
        self._rows = 0
        names.when_gone(self._forget)

    def note(self, topic_ids: npt.NDArray[np.integer], values_ms: I64) -> None:
        """Count values, each of the topic beside it. The arrays are kept: do not change them afterwards."""
        with self._names.lock:
            self._parts.append((topic_ids, values_ms))
            self._rows += len(values_ms)
            if self._rows >= _ROWS_KEPT_MAX or len(self._parts) >= _PARTS_KEPT_MAX:
                self._count()

    def by_topic(self) -> list[TopicCounts]:
        """Every named topic that has a value, and the others, as of now."""
        with self._names.lock:
            self._count()
            named: list[tuple[int, str | None]] = [*self._names.named(), (_OTHERS, None)]
            return [
                TopicCounts(name, self._counts[slot].tolist(), float(self._sums[slot]))
                for slot, name in named
                if self._counts[slot].any()
            ]

    def _count(self) -> None:
        parts, self._parts, self._rows = self._parts, [], 0
        if not parts:
            return
        topic_ids, values = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        if not len(values):
            return
        values = np.maximum(values, 0)  # one may ask for a time in the past
        if topic_ids.min() == topic_ids.max():
            self._add(int(self._names.slots(topic_ids[:1])[0]), values)
            return
        slots = self._names.slots(topic_ids)
        present = np.flatnonzero(np.bincount(slots)).tolist()
        if len(values) > _ROWS_OF_A_TOPIC * len(present):
            for slot in present:
                self._add(slot, values[slots == slot])
            return
        buckets = np.searchsorted(self._bounds, values)
        places = slots * self._counts.shape[1] + buckets
        self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(slots, values, minlength=len(self._sums))

    def _add(self, slot: int, values: I64) -> None:
        self._counts[slot] += self._by_bucket(values)
        self._sums[slot] += values.sum()

    def _by_bucket(self, values: I64) -> I64:
        """How many values lie in each bucket. Comparing many with one bound after the other is several times
        faster than a binary search for each of them."""
        counts = np.zeros(len(self._bounds) + 1, np.int64)
        first, last = np.searchsorted(self._bounds, (values.min(), values.max())).tolist()
        below = 0
        for bucket in range(first, last):
            up_to = int(np.count_nonzero(values <= self._bounds[bucket]))
            counts[bucket], below = up_to - below, up_to
        counts[last] = len(values) - below
        return counts

    def _forget(self, slot: int) -> None:
        self._counts[slot] = 0
        self._sums[slot] = 0
