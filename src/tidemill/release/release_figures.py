"""What is measured of releases: how late they were, altogether and by topic, and how long each record took.

Owns the figures of this process; they decide nothing. Called by whichever thread finishes a record, one at a
time (`commit_window.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.clock import stopwatch_s
from tidemill.core.histogram import Histogram
from tidemill.release.commit_window import Record
from tidemill.release.lateness import Lateness
from tidemill.store.topic_histograms import LATENESS_BOUNDS_MS, TopicHistogram, TopicNames


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
