"""Tells waiting consumers that something became visible.

Owns a counter that rises with every announcement. A consumer notes the count, looks, and if it found
nothing waits for the count to move on: no announcement between the look and the wait is missed, and no lock
is held while looking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Arrivals:
    """A counter to wait on. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # protects count
        self.count = 0
        # Called after each announcement, on the announcing thread; must neither block nor raise.
        self.listener: Callable[[], None] | None = None

    def announce(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()
        if self.listener is not None:
            self.listener()

    def wait(self, seen: int, timeout_ms: int) -> None:
        """Return when the count is no longer `seen`, or after `timeout_ms`."""
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen, timeout_ms / 1000)
