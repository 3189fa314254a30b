"""What was found damaged in derived files and derived again from the log: counted, and logged once each.

Owns the counters that metrics and `status` show. Damage is never acted on: the reader that finds a row or a
file that fails its checksum derives it again from the commit log and reports it here. A message whose
bytes in the commit log itself are damaged cannot be derived again: `damaged_frames.py` notes those frames,
and `damaged_messages.py` says what they hold.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from enum import StrEnum
from pathlib import Path

logger = logging.getLogger(__name__)


class Derived(StrEnum):
    """The kinds of derived files that carry checksums."""

    ENTRIES = "entries"
    QUEUES = "queues"
    FIND = "find"
    TIMER = "timer"


class Repairs:
    """Counts of what was derived again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the counters
        self._rows: Counter[Derived] = Counter()

    def add(self, kind: Derived, path: Path, what: str, count: int) -> None:
        """`count` rows (or files) of `path` were damaged and have been derived again; `what` names them."""
        with self._lock:
            self._rows[kind] += count
        logger.error("%s: damage in %s; derived again from the commit log", path, what)

    def counts(self) -> dict[Derived, int]:
        """Rows or files derived again since the broker started, for every kind."""
        with self._lock:
            return {kind: self._rows[kind] for kind in Derived}
