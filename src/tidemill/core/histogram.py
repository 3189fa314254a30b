"""A histogram of durations with fixed buckets: cheap to add to, ready to be scraped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Histogram:
    """Counts by bucket, and the sum. One writer at a time; readers may look meanwhile."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count

    def add_counted(self, values_ms: Iterable[tuple[int, int]]) -> None:
        """Distinct milliseconds, each with how often it occurred."""
        for value_ms, count in values_ms:
            self.add(value_ms / 1000, count)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, how many at or below it), the last bound infinite."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
