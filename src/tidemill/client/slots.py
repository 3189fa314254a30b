"""The number of messages that a worker may hold, shared by all its topics.

Invariants: a reservation is for at least one and never exceeds the count; waiters are served in order of
arrival, so that no topic starves. What a poll without a reservation returns is `add`ed, over the count too.
"""

from __future__ import annotations

import threading
from collections import deque


class Slots:
    """Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._in_hand = 0
        self._queue: deque[object] = deque()  # who waits, in order
        self._changed = threading.Condition()

    def reserve(self, most: int, timeout_s: float) -> int:
        """Take at least one place, at most `most`; 0 if there was none in time."""
        me = object()
        with self._changed:
            self._queue.append(me)
            try:
                if not self._changed.wait_for(lambda: self._queue[0] is me and self._room > 0, timeout_s):
                    return 0
                taken = min(most, self._room)
                self._in_hand += taken
                return taken
            finally:
                self._queue.remove(me)
                self._changed.notify_all()

    def add(self, count: int) -> None:
        """Count so many more as held, whether there are free slots or not."""
        with self._changed:
            self._in_hand += count

    def release(self, count: int = 1) -> None:
        with self._changed:
            self._in_hand -= count
            self._changed.notify_all()

    @property
    def _room(self) -> int:
        return self._count - self._in_hand
