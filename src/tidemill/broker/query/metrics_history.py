"""The history of the main metrics: what came in, went out and waited, second by second.

Owns two rings of samples in memory: every second for a quarter of an hour, every minute for a day. A sample
holds running totals, so a rate or the lateness of any stretch is the difference of two of them. Nothing is
written to disk: after a restart the history begins again.

How many timed and immediate messages each topic got is not counted: a timed message waits, was released or
was cancelled, and all others that were stored went into their queues at once.

Invariant: samples of a ring rise in time, and no two lie in the same second (or minute).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.core.histogram import BOUNDS_S
from tidemill.log.arrays import I64
from tidemill.release.lateness import Lateness
from tidemill.store.message_store import MessageStore
from tidemill.store.topic_histograms import OTHER_TOPICS

_SECOND_MS = 1_000
_RINGS = ((_SECOND_MS, 900), (60_000, 1_440))
_BUCKETS = len(BOUNDS_S) + 1
BOUNDS_MS = tuple(bound * 1000 for bound in BOUNDS_S)


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stand at one moment; all but `pending` only ever grow."""

    sent: int
    released: int
    cancelled: int
    pending: int
    lateness: tuple[int, ...]  # releases by bucket of lateness


@dataclass(frozen=True, slots=True)
class MetricsHistoryView:
    """Samples in order of time. `lateness` has a row for each sample, running totals by bucket."""

    every_ms: int
    at_ms: I64
    sent: I64
    released: I64
    cancelled: I64
    pending: I64
    lateness: I64


def sample_of(store: MessageStore, lateness: Lateness) -> Sample:
    """How things stand now."""
    with store.read():
        totals = store.totals.overall()
        pending = sum(store.due_counts.pending(topic.id) for topic in store.topics)
    return Sample(*totals, pending, tuple(lateness.histogram.counts))


class _Ring:
    def __init__(self, every_ms: int, kept: int) -> None:
        self.every_ms = every_ms
        self._rows: I64 = np.zeros((kept, 5 + _BUCKETS), np.int64)
        self._count = 0

    def put(self, now_ms: int, sample: Sample) -> None:
        if self._count and now_ms // self.every_ms == self._last_ms() // self.every_ms:
            return
        row = (now_ms, sample.sent, sample.released, sample.cancelled, sample.pending, *sample.lateness)
        if self._count and now_ms < self._last_ms():
            self._count = 0  # the clock was set back; what was noted under the other one would mislead
        self._rows[self._count % len(self._rows)] = row
        self._count += 1

    def _last_ms(self) -> int:
        return int(self._rows[(self._count - 1) % len(self._rows), 0])

    def rows(self) -> I64:
        if self._count <= len(self._rows):
            return self._rows[: self._count].copy()
        return np.roll(self._rows, -(self._count % len(self._rows)), axis=0)


class MetricsHistory:
    """Takes a sample a second. `step` is for one thread, `view` for any."""

    def __init__(self, look: Callable[[], Sample]) -> None:
        self._look = look
        self._lock = threading.Lock()  # protects the rings
        self._rings = [_Ring(every_ms, kept) for every_ms, kept in _RINGS]

    def step(self, now_ms: int) -> int:
        """Note how things stand; says when to come again."""
        sample = self._look()
        with self._lock:
            for ring in self._rings:
                ring.put(now_ms, sample)
        return now_ms // _SECOND_MS * _SECOND_MS + _SECOND_MS

    def view(self, every_ms: int, since_ms: int = 0) -> MetricsHistoryView:
        """Samples after `since_ms`, from the finest ring whose step is at least `every_ms`."""
        with self._lock:
            ring = next((r for r in self._rings if r.every_ms >= every_ms), self._rings[-1])
            rows = ring.rows()
        rows = rows[rows[:, 0] > since_ms]
        at_ms, sent, released, cancelled, pending = rows[:, :5].T
        return MetricsHistoryView(ring.every_ms, at_ms, sent, released, cancelled, pending, rows[:, 5:])


@dataclass(slots=True)
class KindCounts:
    """Messages ever stored. `topic` None: the topics that have no name in the metrics, together."""

    topic: str | None
    timed: int = 0
    immediate: int = 0


def kind_counts(store: MessageStore) -> list[KindCounts]:
    """Of every topic that is named in the metrics, and of the others."""
    others, found = KindCounts(None), list[KindCounts]()
    with store.read():
        sums = [
            (topic_id, sent, released + cancelled + store.due_counts.pending(topic_id))
            for topic_id, (sent, released, cancelled) in sorted(store.totals.by_topic.items())
        ]
    for topic_id, sent, timed in sums:
        label = store.topic_names.label_of(topic_id)
        if label is None:
            continue  # deleted, and no longer shown
        counts = others
        if label != OTHER_TOPICS:
            counts = KindCounts(label)
            found.append(counts)
        counts.timed += timed
        counts.immediate += max(0, sent - timed)  # a damaged part of the log may have had its counts
    return [*found, others] if others.timed or others.immediate else found
