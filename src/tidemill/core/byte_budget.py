"""A bound on bytes that are held at once: requests that are read, sends under way, answers not yet taken.

Owns the count and the one rule: what would exceed the bound is refused, but the first is always accepted,
however large, or a large one could never pass.
"""

from __future__ import annotations

import threading

from tidemill.core.errors import TooManyRequestsError


class ByteBudget:
    """Counts bytes in and out. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()  # protects held
        self.held = 0

    def fits(self, size: int) -> bool:
        """Whether so many bytes more would be accepted now."""
        return not self.held or self.held + size <= self.bytes_max

    def take(self, size: int, *, instead_of: int = 0, is_certain: bool = False) -> bool:
        """Count `size` bytes in, in place of `instead_of` counted before; False if they exceed the bound.

        What `is_certain` to be held is counted in any case.
        """
        with self._lock:
            others = self.held - instead_of
            if not is_certain and others and others + size > self.bytes_max:
                return False
            self.held = others + size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self.held -= size

    def hold(self, size: int) -> _Held:
        """A context in which so many bytes are held; `TooManyRequestsError` if they exceed the bound."""
        return _Held(self, size)


class _Held:
    """Bytes counted in on the way in, and out on the way out."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget = budget
        self._size = size

    def __enter__(self) -> None:
        if not self._budget.take(self._size):
            raise TooManyRequestsError(
                f"in-flight limit reached: {self._budget.held}/{self._budget.bytes_max} bytes; retry later"
            )

    def __exit__(self, *_: object) -> None:
        self._budget.give_back(self._size)
