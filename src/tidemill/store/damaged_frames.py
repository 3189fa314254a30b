"""The frames of the commit log that were found damaged: noted once, logged once.

Owns the list since the broker started; nothing of it is kept on disk. It is found again by the first read, or
by `log_scrub.py`, which reads the log through after every start. What the damaged frames hold is looked up by
`damaged_messages.py`.
"""

from __future__ import annotations

import logging
import threading

from tidemill.core.errors import DamagedFrameError
from tidemill.log.arrays import I64

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
