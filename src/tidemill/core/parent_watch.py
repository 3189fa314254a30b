"""The tie between a process and the one that started it: a pipe to its standard input.

Owns the lower end. Nobody writes into the pipe; it closes when the starter lets go of it or has ended,
however that came about. So broker, pipeline and what a command starts end with whoever started them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def when_untied(act: Callable[[], object]) -> None:
    """Call `act`, in a thread, when whoever started this process has ended or closed the pipe to it."""
    # Of our own: a server may take descriptor 0 for another pipe.
    pipe = os.dup(0)

    def watch() -> None:
        while os.read(pipe, 4096):
            pass
        act()

    threading.Thread(target=watch, name="tie", daemon=True).start()
