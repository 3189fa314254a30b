"""What commands print with: a console for people, plain lines for pipes, one bar for what takes long.

Owns the choice between the two. Bars go to stderr, so that stdout holds the answer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tidemill.core.durations import format_duration

_WIDTH_WITHOUT_TERMINAL = 100

Advance = Callable[[int, int], None]  # done so far, of how much


def console() -> Console:
    """Standard output, with colours where it is a terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL, color_system=None)


def relative_time(ms: int, now_ms: int) -> str:
    """A moment as people say it: `in 5m`, `2h ago`, `now`."""
    if ms == now_ms:
        return "now"
    return f"in {format_duration(ms - now_ms)}" if ms > now_ms else f"{format_duration(now_ms - ms)} ago"


@contextmanager
def bar(text: str) -> Iterator[Advance]:
    """A progress bar on stderr while the block runs; nothing where stderr is not a terminal."""
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task(text, total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=min(done, total), total=max(total, 1))

        yield advance
