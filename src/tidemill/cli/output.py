"""Output of commands: text and tables for people, JSON for programs, a progress bar for long work.

Bars and remarks go to stderr, so that stdout holds the answer alone; where stderr is not a terminal there are
none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console, RenderableType
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
from rich.table import Table
from rich.text import Text

from tidemill.cli.charts import bytes_text
from tidemill.core.durations import format_duration, format_time

_WIDTH_WITHOUT_TERMINAL = 100

BYTES = "bytes"
_LOOK_EVERY_S = 0.3
Advance = Callable[[int, int], None]  # done so far, of how much
Unit = str | Callable[[float], str]  # what is counted, or the text of a rate
Shown = str | Callable[[], Iterable[RenderableType]]  # a line, or what makes lines and tables
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found or did: JSON for programs, text or tables for people.

    A list is one JSON object per line.
    """

    fields: object
    shown: Shown
    is_done: bool = True  # False: exit code 1
    is_json_in_pipe: bool = False  # a pipe gets JSON without being asked to

    def print(self, is_json: bool) -> int:
        """Print it; returns the exit code."""
        if is_json or (self.is_json_in_pipe and not sys.stdout.isatty()):
            for line in self.fields if isinstance(self.fields, list) else [self.fields]:
                print(json.dumps(line, ensure_ascii=False))
        else:
            for part in [self.shown] if isinstance(self.shown, str) else self.shown():
                print(part) if isinstance(part, str) else console().print(part)
        return 0 if self.is_done else 1


def console() -> Console:
    """Standard output, with colours where it is a terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL, color_system=None)


def table(heads: str, rows: Iterable[Sequence[RenderableType]], **options: bool) -> Table:
    """A plain table. `heads` are separated by commas; that of a column of numbers begins with `>`."""
    made = Table(box=None, header_style="bold", pad_edge=False, **options)  # type: ignore[arg-type]
    for head in filter(None, heads.split(",")):
        made.add_column(head.lstrip(">"), justify="right" if head[0] == ">" else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def due_words(ms: int, now_ms: int | None) -> str:
    """When something is due: `due in 5m (2027-…)`; only the time itself where the clock is not known."""
    if now_ms is None:
        return f"due {format_time(ms)}"
    return f"due {relative_time(ms, now_ms)} ({format_time(ms)})"


def counted(count: int, what: str) -> str:
    """The number of changes: `1 cancelled` on a terminal, the number alone in a pipe."""
    return f"{count:,} {what}" if console().is_terminal else str(count)


def relative_time(ms: int, now_ms: int) -> str:
    """A time relative to another: `in 5m`, `2h ago`, `now`."""
    if ms == now_ms:
        return "now"
    return f"in {format_duration(ms - now_ms)}" if ms > now_ms else f"{format_duration(now_ms - ms)} ago"


class Bar:
    """A progress bar: called with what is done and how much there is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=min(done, total), total=max(total, 1))

    def wait(self, text: str) -> None:
        """Show another text without a share: the remaining time is not known from here on."""
        self._progress.remove_task(self._task)  # its rate and time were those of another step
        self._task = self._progress.add_task(text, total=None)

    def say(self, text: str) -> None:
        """Change the text before the bar."""
        self._progress.update(self._task, description=text)


class _Rate(ProgressColumn):
    """The rate, in bytes or things per second, or in the words of the unit."""

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
    """The remaining time, where it is known."""

    def render(self, task: Task) -> Text:
        if task.total is None or (task.time_remaining is None and not task.finished):
            return Text("")
        return super().render(task) + Text(" left")


@contextmanager
def bar(text: str, unit: Unit = BYTES, screen: Console | None = None) -> Iterator[Bar]:
    """A progress bar on stderr while the block runs, with rate and time left.

    `unit` is what is counted; an empty one shows no rate.
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
    """A spinner on stderr while the block waits; nothing where stderr is not a terminal."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(text):
        yield


def remark(text: str) -> None:
    """A remark on stderr for a user at a terminal; a program's stderr stays empty."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        screen.print(text, markup=False, highlight=False, soft_wrap=True, style="dim")


def watched(call: Callable[[], T], look: Callable[[], object]) -> T:
    """The result of a long call; `look` shows its progress meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(call)
        while True:
            try:
                return running.result(_LOOK_EVERY_S)
            except TimeoutError:
                if running.done():
                    raise
                look()
