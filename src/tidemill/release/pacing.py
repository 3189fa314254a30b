"""Pacing of releases: a pause between records while messages fall due in almost every millisecond.

A record costs the same whether one message is in it or fifty. Where hundreds of records a second would
follow each other, the releaser lets a few milliseconds of messages gather for each; what that adds to their
lateness is less than a busy processor would. Only after a row of records in quick succession: a message
that comes alone, or a few of them, never wait for it.
"""

from __future__ import annotations

PAUSE_MS = 4
# Records that follow each other within this are one row of them; a little more than the pause itself.
_CLOSE_MS = 6
_ROW = 8


class Pacing:
    """Knows until when to pause. For one thread."""

    def __init__(self, pause_ms: int = PAUSE_MS) -> None:
        self._pause_ms = pause_ms
        self._last_ms = 0
        self._in_a_row = 0
        self.until_ms = 0

    def record_made(self, now_ms: int) -> None:
        """A release record was appended."""
        is_close = 0 <= now_ms - self._last_ms <= _CLOSE_MS
        self._in_a_row = self._in_a_row + 1 if is_close else 0
        self._last_ms = now_ms
        self.until_ms = now_ms + self._pause_ms if self._in_a_row >= _ROW else 0

    def is_held(self, now_ms: int) -> bool:
        """True while the next record is to wait; never longer than a pause, wherever the clock is set."""
        return now_ms < self.until_ms <= now_ms + self._pause_ms
