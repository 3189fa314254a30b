"""Counts of refused calls by protocol and error code, since this process started.

Owns the counts. They belong to the process and not to a broker, because much is refused before any broker is
involved: a wrong token, a rate, a body that is too large. The code that turns an error into an answer adds it
here, once.
"""

from __future__ import annotations

import threading
from collections import Counter


class Rejects:
    """Counts by (protocol, code). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects _counts
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, protocol: str, code: str) -> None:
        with self._lock:
            self._counts[protocol, code] += 1

    def counts(self) -> dict[tuple[str, str], int]:
        """A copy of how things stand."""
        with self._lock:
            return dict(self._counts)


REJECTS = Rejects()
