"""Of which log an index checkpoint is the state: what it notes of its log, and how that is compared.

Owns the checkpoint's `origin`: marks of the frames that open the first and the last segment. A checkpoint
that was copied from another data directory has a valid checksum of its own; believed, it would put the state
of that directory in the place of this one. A copy of this directory that went on by itself differs only once
it has begun another segment.

Rule: only bytes that read back speak against a checkpoint. Where the log is damaged or missing it may well
be its own, and it is the only sign of what is lost.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tidemill.core.errors import CorruptionError
from tidemill.log.frame import Frame
from tidemill.store.formats.frames import Base, Kind
from tidemill.store.index_checkpoint import base_in, checkpoint_head


class LogBytes(Protocol):
    """A log that is read: an open one, or the source of a salvage."""

    @property
    def head(self) -> int: ...

    def segment_starts(self) -> list[int]: ...

    def intact_frame(self, offset: int) -> Frame | None: ...

    def intact_frames(self, from_offset: int, end: int) -> Iterator[Frame]: ...


def origin_of(log: LogBytes, end: int) -> dict[str, Any]:
    """What a checkpoint at the log offset `end` notes of its log."""
    starts = _starts_below(log, end)
    if not starts:
        return {"segments": []}
    marks = [[start, _mark(log, start)] for start in sorted({starts[0], starts[-1]})]
    return {"segments": marks}


def require_own(log: LogBytes, content: bytes) -> None:
    """Raise `CorruptionError` for the content of an index checkpoint that contradicts the log."""
    head = checkpoint_head(content)
    if not _is_own(log, head):
        raise CorruptionError(
            f"the index checkpoint of offset {head['offset']} is of another log; it is derived again"
        )


def _is_own(log: LogBytes, head: Mapping[str, Any]) -> bool:
    end = int(head["offset"])
    starts = _starts_below(log, end)
    if not starts or end <= log.head:
        return True  # there is nothing to compare it with
    origin = head.get("origin")
    if origin is not None:
        return _has_marks(log, starts, origin["segments"])
    return _fits_bases(log, starts[-1], base_in(head), end) and not _is_inside(log, starts[-1], end)


def _starts_below(log: LogBytes, end: int) -> list[int]:
    return [start for start in log.segment_starts() if start < end]


def _mark(log: LogBytes, start: int) -> int | None:
    """A number for the frame that opens a segment; None where it does not read back."""
    frame = log.intact_frame(start)
    return zlib.crc32(frame.payload, zlib.crc32(b"%d" % frame.stamp_ms)) if frame is not None else None


def _has_marks(log: LogBytes, starts: list[int], noted: list[list[int | None]]) -> bool:
    marks = {int(start or 0): mark for start, mark in noted}
    if marks and starts[-1] > max(marks):
        return False  # a segment begins where that log had none
    for start in marks.keys() & set(starts):
        mark = _mark(log, start)
        if mark is not None and marks[start] is not None and mark != marks[start]:
            return False
    return True


# -- without an origin ---------------------------------------------------------------------------


def _fits_bases(log: LogBytes, start: int, base: Base, end: int) -> bool:
    """Whether the state lies between those that the base frames in front of it and behind it describe."""
    following = next((other for other in log.segment_starts() if other >= end), None)
    before, after = _base_at(log, start), _base_at(log, following) if following is not None else None
    return (before is None or _may_become(before, base)) and (after is None or _may_become(base, after))


def _base_at(log: LogBytes, start: int) -> Base | None:
    frame = log.intact_frame(start)
    return Base.read(frame.payload) if frame is not None and frame.kind == Kind.BASE else None


def _may_become(earlier: Base, later: Base) -> bool:
    """Seqs, queues and their offsets only grow; a topic keeps its name."""
    known = {topic["id"]: topic for topic in earlier.topics}
    for topic in later.topics:
        was = known.get(topic["id"])
        if was is None:
            continue
        offsets = earlier.next_offsets[str(was["id"])], later.next_offsets[str(topic["id"])]
        has_shrunk = any(old > new for old, new in zip(*offsets, strict=False))
        if topic["name"] != was["name"] or topic["queue_count"] < was["queue_count"] or has_shrunk:
            return False
    return earlier.next_seq <= later.next_seq


def _is_inside(log: LogBytes, start: int, end: int) -> bool:
    """Whether a frame that reads back goes over `end`."""
    return any(frame.end > end for frame in log.intact_frames(start, end))
