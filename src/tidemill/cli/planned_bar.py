"""A progress bar for a few long steps without progress of their own, like measurements.

Owns the estimate: the plan has the expected time of each step, and the bar moves with the clock meanwhile.
The actual times of finished steps correct the expectation for the rest. A step that takes longer than
expected slows the bar down and never lets it pass the step's end: it does not wait at 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tidemill.core.clock import stopwatch_s

# From here on a step is drawn ever more slowly: it may take longer than expected.
_SURE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class PlannedStep:
    text: str
    seconds: float  # estimated


@dataclass(slots=True)
class Plan:
    """Steps in order, and the progress. Seconds are those of a monotonic clock."""

    steps: Sequence[PlannedStep]
    begun_s: float
    _number: int = field(default=0, init=False)
    _step_begun_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._step_begun_s = self.begun_s

    def begin(self, number: int, now_s: float) -> None:
        """The steps before this one are done."""
        self._number, self._step_begun_s = number, now_s

    @property
    def text(self) -> str:
        if self._number >= len(self.steps):
            return "done"
        return f"{self._number + 1} of {len(self.steps)}: {self.steps[self._number].text}"

    def share(self, now_s: float) -> float:
        """The share that is done, from 0 to 1."""
        if self._number >= len(self.steps):
            return 1.0
        done = self._planned_s(0, self._number) + self._here_s() * self._share_here(now_s)
        return done / max(self._planned_s(0, len(self.steps)), 1e-9)

    def left_s(self, now_s: float) -> float:
        """The estimated remaining seconds."""
        if self._number >= len(self.steps):
            return 0.0
        here_s = self._here_s() * (1 - self._share_here(now_s))
        return (here_s + self._planned_s(self._number + 1, len(self.steps))) * self._pace()

    def percent_per_minute(self, now_s: float) -> float:
        return 6000 * self.share(now_s) / max(now_s - self.begun_s, 1e-9)

    def _here_s(self) -> float:
        return self.steps[self._number].seconds

    def _share_here(self, now_s: float) -> float:
        expected_s = max(self._here_s() * self._pace(), 1e-9)
        share = max(0.0, now_s - self._step_begun_s) / expected_s
        if share <= _SURE_SHARE:
            return share
        rest = 1 - _SURE_SHARE
        return 1 - rest / (1 + (share - _SURE_SHARE) / rest)

    def _planned_s(self, first: int, end: int) -> float:
        return sum(step.seconds for step in self.steps[first:end])

    def _pace(self) -> float:
        """The time of finished steps relative to their plan."""
        planned_s = self._planned_s(0, self._number)
        return (self._step_begun_s - self.begun_s) / planned_s if planned_s else 1.0


class _PlannedProgress(Progress):
    """Reads the plan whenever it draws."""

    plan: Plan

    def get_renderables(self) -> Iterable[RenderableType]:
        now_s = stopwatch_s()
        for task in self.tasks:
            share = self.plan.share(now_s)
            task.completed = 100 if share == 1 else min(share * 100, 99)  # 100 % only at the end
            task.description = self.plan.text
            task.fields["rate"] = f"{self.plan.percent_per_minute(now_s):.0f} %/min"
            task.fields["left"] = _clock_text(self.plan.left_s(now_s))
        yield from super().get_renderables()


@contextmanager
def planned_bar(steps: Sequence[PlannedStep], screen: Console | None = None) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the block runs; the block calls the yielded function after each step."""
    screen = screen or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", style="progress.data.speed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[left]}", style="progress.remaining"),
    )
    plan = Plan(steps, stopwatch_s())
    progress = _PlannedProgress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    progress.plan = plan
    done = 0

    def next_step() -> None:
        nonlocal done
        done += 1
        plan.begin(done, stopwatch_s())
        progress.refresh()

    with progress:
        task: TaskID = progress.add_task(plan.text, total=100, rate="", left="")
        yield next_step
        progress.update(task, completed=100)


def _clock_text(seconds: float) -> str:
    minutes, rest_s = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}"
