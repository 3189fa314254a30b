"""What the steps of the timer did, and how long their stages took; for the metrics.

Owns the counts and durations of all steps since the process began, of either runner. Times are measured and
decide nothing. One writer, the timer's thread; any other may look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tidemill.core.clock import stopwatch_s
from tidemill.core.histogram import Histogram
from tidemill.timer.ready_format import Runner


class Stage(StrEnum):
    """The parts of a step, in order, and the release that comes after it."""

    SCAN = "scan"  # entries are read, and those of the shard chosen
    DUE = "due"  # slots are drained, and their timers' entries read
    ABSORB = "absorb"  # timers are placed and written into their slots
    HAND_OVER = "hand-over"  # the ready file is sorted and written, then the cursor
    RELEASE = "release"  # a record is planned, appended and synced, and its messages put into their queues


STEP_STAGES = (Stage.SCAN, Stage.DUE, Stage.ABSORB, Stage.HAND_OVER)


StageTimes = dict[Stage, float]  # seconds that a step spent in each of its stages


def no_times() -> StageTimes:
    return dict.fromkeys(STEP_STAGES, 0.0)


class StageWatch:
    """A stopwatch that gives the time since the last look to a stage."""

    def __init__(self, scan_s: float = 0.0) -> None:
        """`scan_s` went into the scan before the step began."""
        self.times = no_times() | {Stage.SCAN: scan_s}
        self._at_s = stopwatch_s()

    def ends(self, stage: Stage) -> None:
        before_s, self._at_s = self._at_s, stopwatch_s()
        self.times[stage] += self._at_s - before_s


@dataclass(slots=True)
class StepWork:
    """What one step of a shard did, or many steps together."""

    absorbed: int = 0  # timers read for the first time
    handed_over: int = 0  # timers given to the releaser
    rolled: int = 0  # timers whose slot had come before their time: placed again
    already_due: int = 0  # of those absorbed, how many were handed over at once
    times: StageTimes = field(default_factory=no_times)


class StepFigures:
    """Sums over the steps."""

    def __init__(self) -> None:
        self.counts = {runner: StepWork() for runner in Runner}
        self.stages = {stage: Histogram() for stage in STEP_STAGES}
        # A whole step: of one shard by the broker itself, of all shards together by Spark.
        self.steps = {runner: Histogram() for runner in Runner}

    def add(self, runner: Runner, work: StepWork) -> None:
        """Count a step of one shard."""
        counts = self.counts[runner]
        counts.absorbed += work.absorbed
        counts.handed_over += work.handed_over
        counts.rolled += work.rolled
        counts.already_due += work.already_due
        for stage, seconds in work.times.items():
            self.stages[stage].add(seconds)
        if runner is Runner.EMBEDDED:
            self.steps[runner].add(sum(work.times.values()))
