"""The timer's steps: those that Spark took, from the progress file, and the latest ones of either runner.

Owns which of them were counted: each shard's steps rise, within an epoch and over epochs, so a step that is
met twice, or was taken before this process began, is recognised by its number.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from tidemill.log.disk import Disk
from tidemill.timer.cursor import Cursor
from tidemill.timer.progress import ShardStep, read_progress
from tidemill.timer.ready_format import Runner
from tidemill.timer.step_figures import StepFigures


class SparkSteps:
    """Counts the steps that the pipeline's process reports. For one thread."""

    def __init__(self, disk: Disk, timer_directory: Path, figures: StepFigures) -> None:
        self._disk = disk
        self._directory = timer_directory
        self._figures = figures
        self._counted: dict[int, tuple[int, int]] = {}
        self._new()  # what an earlier process saw

    def look(self) -> None:
        """Count what is new."""
        for step in self._new():
            self._figures.add(Runner.SPARK, step.work)

    def _new(self) -> list[ShardStep]:
        """Steps that were not seen before, and from now on are."""
        found = []
        for step in read_progress(self._disk, self._directory):
            place = (step.epoch, step.step)
            if place > self._counted.get(step.shard, (-1, -1)):
                self._counted[step.shard] = place
                if any(step.work.times.values()):  # else there was nothing to do, or it was not ours to do
                    found.append(step)
        return found


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
