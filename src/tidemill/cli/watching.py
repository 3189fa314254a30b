"""Live views: drawn again every second until interrupted, also while the broker is unreachable.

Owns the loop. A view is whatever `look` returns. While the broker does not answer, that is shown above the
last view and retried; only the very first call may fail, because then the address is probably wrong. Where
stdout is not a terminal every view is printed below the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tidemill.core.errors import TidemillError, UnreachableError

EVERY_S = 1.0
Look = Callable[[], RenderableType]


def watch(screen: Console, look: Look, pause: threading.Event | None = None) -> None:
    """Show what `look` returns until interrupted or `pause` is set."""
    pause = pause or threading.Event()
    last = picture = look()
    try:
        with Live(console=screen, auto_refresh=False, transient=True) as live:
            while True:
                _show(screen, live, picture)
                if pause.wait(EVERY_S):
                    return
                try:
                    last = picture = look()
                except TidemillError as error:
                    if not _may_pass(error):
                        raise
                    picture = Group(Text(f"{error}\nRetrying every second.", "bold red"), last)
    except KeyboardInterrupt:
        return  # the usual end of a live view


def _show(screen: Console, live: Live, picture: RenderableType) -> None:
    if screen.is_terminal:
        live.update(picture, refresh=True)
    else:
        screen.print(picture)


def _may_pass(error: TidemillError) -> bool:
    """Whether the error may pass: the broker does not answer, or is still starting."""
    return isinstance(error, UnreachableError) or type(error) is TidemillError
