"""Watch of the parent process through a pipe to standard input.

Owns the child's end. Nothing is written into the pipe; it closes when the parent closes it or ends, however
that came about. So broker, pipeline and child processes of a command end with their parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def when_untied(act: Callable[[], object]) -> None:
    """Call `act`, in a thread, when the parent process has ended or closed the pipe."""
    # Of our own: a server may take descriptor 0 for another pipe.
    pipe = os.dup(0)

    def watch() -> None:
        while os.read(pipe, 4096):
            pass
        act()

    threading.Thread(target=watch, name="tie", daemon=True).start()
