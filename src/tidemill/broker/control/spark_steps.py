"""The steps that Spark took, read from the progress file and counted with the broker's own.

Owns which of them were counted: each shard's steps rise, within an epoch and over epochs, so a step that is
met twice, or was taken before this process began, is recognised by its number.
"""

from __future__ import annotations

from pathlib import Path

from tidemill.log.disk import Disk
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
