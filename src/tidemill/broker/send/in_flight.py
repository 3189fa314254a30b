"""A bound on what is under way: bytes of sends not answered yet. Over it, sends are refused."""

from __future__ import annotations

import threading

from tidemill.core.errors import TooManyRequests


class InFlight:
    """Counts bytes in; refuses what would go over the bound."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # protects held_bytes
        self.held_bytes = 0

    def hold(self, count: int) -> _Held:
        """A context in which so many bytes are under way; `TooManyRequests` if they are too many."""
        return _Held(self, count)

    def take(self, count: int) -> None:
        with self._lock:
            # One request alone is always let in, however large.
            if self.held_bytes and self.held_bytes + count > self._bytes_max:
                raise TooManyRequests(
                    f"in-flight limit reached: {self.held_bytes}/{self._bytes_max} bytes; retry later"
                )
            self.held_bytes += count

    def give_back(self, count: int) -> None:
        with self._lock:
            self.held_bytes -= count


class _Held:
    """Bytes counted in on the way in, and out on the way out."""

    __slots__ = ("_count", "_in_flight")

    def __init__(self, in_flight: InFlight, count: int) -> None:
        self._in_flight = in_flight
        self._count = count

    def __enter__(self) -> None:
        self._in_flight.take(self._count)

    def __exit__(self, *_: object) -> None:
        self._in_flight.give_back(self._count)
