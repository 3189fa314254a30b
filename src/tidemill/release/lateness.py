"""How late messages came into their topics: percentiles over the recent ones, extremes since start.

Owns a ring of the last releases' lateness in milliseconds. Lateness is taken from the clock when the message
was visible in its queue, minus the moment since when it could have gone (`store/releasable_since.py`). It
must never be negative. Owns also the other figures of releases, by topic and by record; they decide nothing.
Whichever thread finishes a record counts it, one at a time (`commit_window.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.core.clock import stopwatch_s
from tidemill.core.histogram import Histogram
from tidemill.log.arrays import I64
from tidemill.release.commit_window import Record
from tidemill.store.topic_histograms import LATENESS_BOUNDS_MS, TopicHistogram, TopicNames

_RECENT = 100_000


@dataclass(frozen=True, slots=True)
class LatenessSummary:
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    min_ms: float


class Lateness:
    """The recent past of the releaser."""

    def __init__(self) -> None:
        self._ring: I64 = np.zeros(_RECENT, np.int64)
        self.count = 0
        self._max_ms = 0
        self._min_ms: int | None = None
        self.histogram = Histogram()

    def record(self, late_ms: I64) -> None:
        if not len(late_ms):
            return
        self._max_ms = max(self._max_ms, int(late_ms.max()))
        lowest = int(late_ms.min())
        self._min_ms = lowest if self._min_ms is None else min(self._min_ms, lowest)
        values, counts = np.unique(late_ms, return_counts=True)
        self.histogram.add_counted(zip(values.tolist(), counts.tolist(), strict=True))
        recent = late_ms[-_RECENT:]
        start = (self.count + len(late_ms) - len(recent)) % _RECENT
        first = recent[: _RECENT - start]
        self._ring[start : start + len(first)] = first
        self._ring[: len(recent) - len(first)] = recent[len(first) :]
        self.count += len(late_ms)

    def summary(self) -> LatenessSummary:
        if not self.count:
            return LatenessSummary(0, 0.0, 0.0, 0.0, 0.0)
        recent = self._ring[: min(self.count, _RECENT)]
        p50, p99 = np.percentile(recent, [50, 99])
        return LatenessSummary(
            self.count, float(p50), float(p99), float(self._max_ms), float(self._min_ms or 0)
        )


class ReleaseFigures:
    """Counts every record that is finished."""

    def __init__(self, names: TopicNames, now_ms: Callable[[], int]) -> None:
        self.lateness = Lateness()
        self.by_topic = TopicHistogram(names, LATENESS_BOUNDS_MS)
        self.durations = Histogram()  # of records, from their plan to their last queue row
        self._now_ms = now_ms

    def note(self, record: Record) -> None:
        """Count a record whose messages are in their queues now."""
        late_ms = self._now_ms() - record.rows["deliver_at_ms"]
        self.lateness.record(late_ms)
        self.by_topic.note(record.topic_ids, late_ms)
        self.durations.add(stopwatch_s() - record.planned_s)
