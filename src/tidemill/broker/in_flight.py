"""A bound on what is under way: bytes of sends not answered yet. Over it, callers are told to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.core.errors import TooManyRequests


class InFlight:
    """Counts bytes in; refuses what would go over the bound."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # protects held_bytes
        self.held_bytes = 0

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        with self._lock:
            # One request alone is always let in, however large.
            if self.held_bytes and self.held_bytes + count > self._bytes_max:
                raise TooManyRequests(
                    f"{self.held_bytes} bytes of sends are under way, the limit is {self._bytes_max}; "
                    "send again shortly"
                )
            self.held_bytes += count
        try:
            yield
        finally:
            with self._lock:
                self.held_bytes -= count
