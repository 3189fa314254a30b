"""What the log holds of a request with an id: the frames that carried it out within the last hour.

Owns how they are found (by the id's hash in the find index, checked against the frame) and for how long they
count. Call under the writer lock, so that the answer holds until the caller has appended its own frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.core.errors import CorruptionError
from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.log.segments import SegmentedLog
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.find_runs import request_frames_in
from tidemill.store.find.hashing import request_hash
from tidemill.store.formats.frames import Cancel, Kind, ReEnter
from tidemill.store.formats.request_format import Request


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """One frame of a request."""

    request: Request
    change: Cancel | ReEnter
    stamp_ms: int


def recorded_parts(log: SegmentedLog, find: FindIndex, request_id: bytes, now_ms: int) -> list[RecordedPart]:
    """The frames of the request's latest use, in log order; empty where that is over an hour ago."""
    parts: list[RecordedPart] = []
    for offset in request_frames_in(find.find(request_hash(request_id))):
        part = _part_at(log, offset) if offset >= log.head else None
        if part is None or part.request.id != request_id:
            continue
        if part.request.part == 1:
            parts = []  # what came before is an earlier use of the id
        parts.append(part)
    return parts if parts and now_ms - parts[-1].stamp_ms < DEDUPLICATION_MS else []


def _part_at(log: SegmentedLog, offset: int) -> RecordedPart | None:
    frame = log.intact_frame(offset)
    if frame is None:
        raise CorruptionError(
            f"the frame at offset {offset} of the commit log is damaged, and it may hold the answer to this "
            "request. Nothing was changed. Run `tidemill salvage`, or retry without the request id"
        )
    match frame.kind:
        case Kind.CANCEL:
            change: Cancel | ReEnter = Cancel.read(frame.payload)
        case Kind.RE_ENTER:
            change = ReEnter.read(frame.payload)
        case _:
            return None
    return None if change.request is None else RecordedPart(change.request, change, frame.stamp_ms)
