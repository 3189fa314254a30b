"""What the steps of the timer did, and how long their stages took; for the metrics.

Owns the counts and durations of all steps since the process began, of either runner. Times are measured and
decide nothing. One writer, the timer's thread; any other may look.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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


@dataclass(slots=True)
class StageTimes:
    """Seconds that a step spent in each of its stages."""

    scan: float = 0.0
    due: float = 0.0
    absorb: float = 0.0
    hand_over: float = 0.0

    @property
    def total(self) -> float:
        return self.scan + self.due + self.absorb + self.hand_over


class StageWatch:
    """A stopwatch that gives the time since the last look to a stage."""

    def __init__(self, scan_s: float = 0.0) -> None:
        """`scan_s` went into the scan before the step began."""
        self.times = StageTimes(scan=scan_s)
        self._at_s = stopwatch_s()

    def scan(self) -> None:
        self.times.scan += self._lap_s()

    def due(self) -> None:
        self.times.due += self._lap_s()

    def absorb(self) -> None:
        self.times.absorb += self._lap_s()

    def hand_over(self) -> None:
        self.times.hand_over += self._lap_s()

    def _lap_s(self) -> float:
        before_s, self._at_s = self._at_s, stopwatch_s()
        return self._at_s - before_s


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step of a shard did."""

    absorbed: int = 0  # timers read for the first time
    handed_over: int = 0  # timers given to the releaser
    rolled: int = 0  # timers whose slot had come before their time: placed again
    already_due: int = 0  # of those absorbed, how many were handed over at once
    times: StageTimes = field(default_factory=StageTimes)


@dataclass(slots=True)
class WorkCounts:
    """The same of many steps."""

    absorbed: int = 0
    handed_over: int = 0
    rolled: int = 0
    already_due: int = 0


class StepFigures:
    """Sums over the steps."""

    def __init__(self) -> None:
        self.counts = {runner: WorkCounts() for runner in Runner}
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
        for stage, seconds in zip(STEP_STAGES, asdict(work.times).values(), strict=True):
            self.stages[stage].add(seconds)
        if runner is Runner.EMBEDDED:
            self.steps[runner].add(work.times.total)
