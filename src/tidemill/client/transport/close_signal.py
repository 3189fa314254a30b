"""Wakes threads that wait before a retry, when their client is closed.

Not `threading.Event`: that consists of several steps in Python, and an interrupt between two of them (Ctrl-C,
in the main thread) leaves its lock taken; closing the client would then block for ever. Here each waits on a
lock of its own, and only a set is shared.
"""

from __future__ import annotations

import threading


class Closing:
    """Thread-safe, and safe from interrupts."""

    def __init__(self) -> None:
        self._is_set = False
        self._locks: set[threading.Lock] = set()  # one for each waiter

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for lock in list(self._locks):
            release_once(lock)

    def wait(self, timeout_s: float) -> bool:
        """Wait so long, or until it is set; returns whether it is."""
        lock = threading.Lock()
        lock.acquire()
        self._locks.add(lock)
        try:
            if not self._is_set:
                lock.acquire(timeout=timeout_s)
        finally:
            self._locks.discard(lock)
        return self._is_set


def release_once(lock: threading.Lock) -> None:
    """Release a lock that a thread waits for, or will; twice does no harm."""
    try:
        lock.release()
    except RuntimeError:
        return  # released before
