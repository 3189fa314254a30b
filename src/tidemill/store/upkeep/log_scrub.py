"""The scrub of the commit log: every frame is verified soon after a start, and once a day after that.

Owns how far it has come. It is what finds the damaged frames again after a restart, and those that
are never read. Each step is bounded by bytes and by frames, and takes no lock but to look up what is damaged.
"""

from __future__ import annotations

from tidemill.core.errors import DamagedFrameError
from tidemill.core.limits import DAY_MS, MIB
from tidemill.store.damaged_messages import frames_between
from tidemill.store.message_store import MessageStore

_STEP_BYTES = 4 * MIB
_STEP_FRAMES = 500
_EVERY_MS = DAY_MS


class LogScrub:
    """Verifies a log a part at a time. For one thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._at: int | None = store.log.head  # None: between two rounds
        self._begun_at_ms: int | None = None

    def step(self, boot_ms: int) -> None:
        """Verify the next part of the log, if a round is under way or due."""
        if self._begun_at_ms is None or boot_ms - self._begun_at_ms >= _EVERY_MS:
            self._begun_at_ms, self._at = boot_ms, self._store.log.head
        if self._at is not None:
            self._at = self._verified(self._at, self._store.log.synced_end)

    def run(self) -> None:
        """Verify the whole log."""
        at, end = self._store.log.head, self._store.log.synced_end
        rest: int | None = at
        while rest is not None:
            rest = self._verified(rest, end)

    def _verified(self, at: int, end: int) -> int | None:
        """Verify a part of `[at, end)`; where the next one begins, None at the end."""
        log = self._store.log
        stop = min(end, at + _STEP_BYTES)
        for _ in range(_STEP_FRAMES):
            at = max(at, log.head)
            if at >= stop:
                break
            frame = log.intact_frame(at)
            if frame is not None:
                at = frame.end
            elif at >= log.head:  # else it was cut meanwhile
                after = log.frame_after(at)
                behind = end if after is None else after.offset
                self._note(at, behind)
                at = behind
        return at if at < end else None

    def _note(self, start: int, stop: int) -> None:
        """Note the damaged frames in a part of the log where none reads back."""
        for offset in sorted({start, *frames_between(self._store, start, stop)}):
            try:
                self._store.log.frame(offset)
            except DamagedFrameError as error:
                self._store.damaged.note(error)
