"""Output of commands: a console for terminals, plain lines for pipes, one progress bar for long work.

Owns the choice between the two. Bars go to stderr, so that stdout holds the answer alone; where stderr is not
a terminal there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tidemill.cli.pictures import bytes_text
from tidemill.core.durations import format_duration, format_time

_WIDTH_WITHOUT_TERMINAL = 100

BYTES = "bytes"
Advance = Callable[[int, int], None]  # done so far, of how much
Unit = str | Callable[[float], str]  # what is counted; or how so many of it a second are said


class Bar:
    """A progress bar: called with what is done and how much there is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=min(done, total), total=max(total, 1))

    def wait(self, text: str) -> None:
        """From here on nobody knows how long it takes: say what is done, and only show that it goes on."""
        self._progress.remove_task(self._task)  # its rate and its time were of something else
        self._task = self._progress.add_task(text, total=None)

    def say(self, text: str) -> None:
        """Change what stands before the bar."""
        self._progress.update(self._task, description=text)


def console() -> Console:
    """Standard output, with colours where it is a terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL, color_system=None)


def due_words(ms: int, now_ms: int | None) -> str:
    """When something is due: `due in 5m (2027-…)`, without the first part where the clock is not known."""
    if now_ms is None:
        return f"due {format_time(ms)}"
    return f"due {relative_time(ms, now_ms)} ({format_time(ms)})"


def counted(count: int, what: str) -> str:
    """How many were changed: `1 cancelled` on a terminal, the number alone in a pipe."""
    return f"{count:,} {what}" if console().is_terminal else str(count)


def relative_time(ms: int, now_ms: int) -> str:
    """A moment as people say it: `in 5m`, `2h ago`, `now`."""
    if ms == now_ms:
        return "now"
    return f"in {format_duration(ms - now_ms)}" if ms > now_ms else f"{format_duration(now_ms - ms)} ago"


class _Rate(ProgressColumn):
    """How fast it goes, in bytes or in things a second, or as the unit itself says it."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not self._unit or speed is None or task.total is None:
            return Text("")
        if callable(self._unit):
            return Text(self._unit(speed), "progress.data.speed")
        amount = bytes_text(speed) if self._unit == BYTES else f"{speed:,.0f} {self._unit}"
        return Text(f"{amount}/s", "progress.data.speed")


class _Left(TimeRemainingColumn):
    """The time that is left, where anybody can tell."""

    def render(self, task: Task) -> Text:
        if task.total is None or (task.time_remaining is None and not task.finished):
            return Text("")
        return super().render(task) + Text(" left")


@contextmanager
def bar(text: str, unit: Unit = BYTES, screen: Console | None = None) -> Iterator[Bar]:
    """A progress bar on stderr while the block runs, with rate and time left.

    `unit` is what is counted; with an empty one no rate is shown.
    """
    screen = screen or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        _Rate(unit),
        TimeElapsedColumn(),
        _Left(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        yield Bar(progress, progress.add_task(text, total=None))


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A sign of life on stderr while the block waits, for somebody at a terminal."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(text):
        yield


def remark(text: str) -> None:
    """A word on stderr for somebody at a terminal; a program's stderr stays clean."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        screen.print(text, markup=False, highlight=False, soft_wrap=True, style="dim")
