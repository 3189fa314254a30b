"""Which head of the log may go. Pure: segments and their live bytes in, an offset out.

Messages older than the retention go with their segment; those still alive (pending, open transactions) are
appended again at the tail first. That copy is worth it once more of those old bytes are dead than alive, so
a few long-lived messages never pin a disk, and the disk holds at most twice the live bytes plus what the
retention keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """One sealed segment: where it lies, when it was sealed, and how much of it is alive."""

    start: int
    end: int
    sealed_at_ms: int
    live_bytes: int


def cut_offset(segments: Sequence[SegmentUse], now_ms: int, retention_ms: int, held_from: int | None) -> int:
    """The offset up to which the head shall be cut; the start of the first segment for "nothing".

    `held_from` is the lowest log offset that must stay: of a message that a consumer holds right now, or of
    one that waits and cannot be moved because its bytes are damaged.
    """
    cut = segments[0].start if segments else 0
    total = live = 0
    for segment in segments:
        if segment.sealed_at_ms > now_ms - retention_ms:
            break
        if held_from is not None and segment.end > held_from:
            break
        total += segment.end - segment.start
        live += segment.live_bytes
        if live * 2 < total:
            cut = segment.end
    return cut
