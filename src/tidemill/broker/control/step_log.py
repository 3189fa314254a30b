"""The last steps of the timer, of either runner: what the broker saw of the shards' cursors moving.

Owns a short list in memory. A step that Spark takes is seen when its cursors have moved, so two quick
ones may show as one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tidemill.timer.cursor import Cursor

_KEPT = 20


@dataclass(frozen=True, slots=True)
class StepSeen:
    at_ms: int
    runner: str
    steps: int  # by all shards together
    rows: int  # entries the slowest shard has gone through
    drained_to_ms: int  # everything due before this has been handed over


class StepLog:
    """Notes steps. One writer; readers take a copy."""

    def __init__(self, tick_ms: int) -> None:
        self._tick_ms = tick_ms
        self._steps: deque[StepSeen] = deque(maxlen=_KEPT)
        self._last: tuple[Cursor, ...] = ()

    def see(self, now_ms: int, runner: str, cursors: tuple[Cursor, ...]) -> None:
        """Note how far the shards are, if they have moved since the last look."""
        last, self._last = self._last, cursors
        if not last or len(last) != len(cursors):
            return
        steps = sum(max(0, new.step - old.step) for new, old in zip(cursors, last, strict=True))
        if steps:
            rows = min(c.seq for c in cursors) - min(c.seq for c in last)
            tick = min(c.tick for c in cursors)
            self._steps.append(StepSeen(now_ms, runner, steps, max(0, rows), tick * self._tick_ms))

    def latest(self) -> list[StepSeen]:
        """The last steps, newest first."""
        return list(self._steps)[::-1]
