"""Notifies waiting consumers that something became visible.

Owns a counter that rises with every announcement, and whose messages became visible without being new: a
lease was cut short, or the way behind a message that is settled is free. A consumer notes the count, looks,
and if it found nothing waits for the count to move on: no announcement between the look and the wait is
missed, and no lock is held while looking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class QueueNotifier:
    """A counter to wait on. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # protects count and _freed
        self.count = 0
        self._freed: set[tuple[str, str]] = set()
        # Called after each announcement, on the announcing thread; must neither block nor raise.
        self.listener: Callable[[], None] | None = None

    def announce(self, freed: Iterable[tuple[str, str]] = ()) -> None:
        """Something became visible; `freed` names each (topic, group) for which it may be nothing new."""
        with self._changed:
            self.count += 1
            if self.listener is not None:
                self._freed.update(freed)
            self._changed.notify_all()
        if self.listener is not None:
            self.listener()

    def take_freed(self) -> set[tuple[str, str]]:
        """What was freed since the last call. Only the listener calls it."""
        if not self._freed:
            return set()
        with self._changed:
            freed, self._freed = self._freed, set()
        return freed

    def wait(self, seen: int, timeout_ms: int) -> None:
        """Return when the count is no longer `seen`, or after `timeout_ms`."""
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen, timeout_ms / 1000)
