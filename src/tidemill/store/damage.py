"""What was found damaged: counted, and logged once each. Nothing of it is kept on disk.

Damage in derived files is never acted on: the reader that finds a row or a file that fails its checksum
derives it again from the commit log and reports it here (`Repairs`). A frame of the commit log itself cannot
be derived again (`DamagedFrames`): it is found by the first read, or by `log_scrub.py`, which reads the log
through after every start, and `damaged_messages.py` says what it holds.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from enum import StrEnum
from pathlib import Path

from tidemill.core.errors import DamagedFrameError
from tidemill.log.arrays import I64

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


logger = logging.getLogger(__name__)


class DamagedFrames:
    """Errors by log offset. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the list
        self._frames: dict[int, DamagedFrameError] = {}
        self._held_at = -1
        # What is in them, once it was looked up: seqs of timed messages, and how many others.
        self.seqs: dict[int, I64] = {}
        self.row_counts: dict[int, int] = {}

    def note(self, error: DamagedFrameError) -> None:
        """A frame did not read back; only the first time is logged."""
        with self._lock:
            is_new = error.offset not in self._frames
            self._frames.setdefault(error.offset, error)
        if is_new:
            logger.error("%s", error)

    def note_held(self, offset: int) -> None:
        """Retention cannot cut the segment of a damaged frame; logged once for each frame."""
        with self._lock:
            is_new, self._held_at = self._held_at != offset, offset
        if is_new:
            logger.warning(
                "retention stopped at log offset %d: a pending message there has damaged bytes. "
                "It continues once that message is released or cancelled; `tidemill damaged` lists it",
                offset,
            )

    def since(self, head: int) -> list[DamagedFrameError]:
        """Those at or above the head of the log, in order; what is below is forgotten."""
        with self._lock:
            self._frames = {offset: error for offset, error in self._frames.items() if offset >= head}
            return [self._frames[offset] for offset in sorted(self._frames)]
