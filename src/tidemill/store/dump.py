"""Any file of the store, readable: what `tidemill dump` prints for them.

Owns the choice of words only; the bytes are decoded by the formats. Pure: bytes in, one dictionary per line
out, lazily, so that a file of any size can be looked at. Bytes that do not read back become a line that says
so, and reading goes on behind them where that is possible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tidemill.core.durations import format_time
from tidemill.core.errors import CorruptionError
from tidemill.core.model import NO_TIME_MS, StoredMessage, Via, rolls_of
from tidemill.log.checkpoint import decode_checkpoint
from tidemill.log.disk import ByteArray
from tidemill.log.frame import MAGIC, Frame, decode_frame
from tidemill.log.head_record import HEAD_BYTES, decode_head
from tidemill.store.consumers.consumer_log import KIND_CHANGES, KIND_GROUP, KIND_OPENING
from tidemill.store.consumers.consumer_state import ACT_NAMES, CHANGE
from tidemill.store.find.find_runs import PLACE_BIT, request_frames_in
from tidemill.store.formats.entry_format import (
    ENTRY,
    FLAG_FIFO,
    FLAG_LEVEL,
    FLAG_MOVED,
    FLAG_NEAR,
    FLAG_PAST,
    frame_offset_of,
    row_of,
)
from tidemill.store.formats.find_format import RUN_HEADER_BYTES, decode_run_header, is_whole
from tidemill.store.formats.frames import (
    Base,
    Cancel,
    End,
    Gap,
    Half,
    Kind,
    ReEnter,
    Release,
    SendBack,
    TopicChange,
)
from tidemill.store.formats.message_format import Section
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.request_format import Request
from tidemill.store.index_checkpoint import checkpoint_head

Line = dict[str, Any]
Describe = Callable[[Frame], tuple[Line, Section | None]]

_BODY_SHOWN = 60
_FLAGS = {FLAG_NEAR: "near", FLAG_LEVEL: "level", FLAG_FIFO: "fifo", FLAG_MOVED: "moved", FLAG_PAST: "past"}


# -- logs -----------------------------------------------------------------------------------------


def dump_segment(data: ByteArray, start: int | None, messages_max: int) -> Iterator[Line]:
    """Frames of a segment, each followed by up to `messages_max` of its messages.

    `start` is the log offset of the first byte; None where the name does not say, then the first frame does.
    """
    if start is None:
        start = _told_start(data)
    first = decode_frame(data, 0, start, verify=True)
    is_consumer_log = first is not None and first.kind == KIND_OPENING and not len(first.payload)
    describe = _describe_change if is_consumer_log else _describe_frame
    at = 0
    while at < len(data):
        frame = decode_frame(data, at, start + at, verify=True)
        if frame is None:
            line, at = _gap(data, at, start)
            yield line
            continue
        yield from _frame_lines(frame, describe, messages_max)
        at = frame.end - start


def _told_start(data: ByteArray) -> int:
    if len(data) < 24 or data[:4].tobytes() != MAGIC:
        raise CorruptionError("this is no log segment: it does not begin with a frame")
    return int.from_bytes(data[16:24].tobytes(), "little")


def _gap(data: ByteArray, at: int, start: int) -> tuple[Line, int]:
    """What lies between two frames, and where the next whole frame begins (or the end)."""
    if not data[at:].any():
        return {"what": "unused", "offset": start + at, "bytes": len(data) - at}, len(data)
    raw = data[at:].tobytes()
    found = raw.find(MAGIC, 1)
    while found >= 0 and decode_frame(data, at + found, start + at + found, verify=True) is None:
        found = raw.find(MAGIC, found + 1)
    end = at + found if found >= 0 else len(data)
    why = (
        "a frame that does not read back" if found >= 0 else "a torn tail, or a frame that does not read back"
    )
    return {"what": "DAMAGED", "offset": start + at, "bytes": end - at, "note": why}, end


def _frame_lines(frame: Frame, describe: Describe, messages_max: int) -> Iterator[Line]:
    head = {
        "what": "frame",
        "offset": frame.offset,
        "bytes": frame.end - frame.offset,
        "stamp": format_time(frame.stamp_ms),
        "synced_end": frame.synced_end,
    }
    try:
        details, section = describe(frame)
    except (CorruptionError, ValueError, KeyError) as error:
        yield {**head, "kind": frame.kind, "note": f"the payload does not read: {error}"}
        return
    yield {**head, **details}
    if section is not None and messages_max:
        for row in range(min(section.count, messages_max)):
            yield {"what": "message", "row": row, **_message(section.message(row))}
        if section.count > messages_max:
            yield {"what": "message", "note": f"{section.count - messages_max} more in this frame"}


def _describe_frame(frame: Frame) -> tuple[Line, Section | None]:
    """The particulars of a commit-log frame."""
    payload, name = frame.payload, Kind(frame.kind).name.lower().replace("_", "-")
    section: Section | None = None
    more: Line = {}
    match frame.kind:
        case Kind.BASE:
            base = Base.read(payload)
            more = {"next_seq": base.next_seq, "topics": [topic["name"] for topic in base.topics]}
        case Kind.MESSAGES:
            section = Section(payload)
        case Kind.RELEASE:
            release = Release.read(payload)
            section = release.section
            more = {"seqs": _few(release.seqs), "queues": len(release.groups), "via": _vias(release.via)}
        case Kind.CANCEL:
            cancel = Cancel.read(payload)
            more = {"seqs": _few(cancel.seqs), **_request(cancel.request)}
        case Kind.RE_ENTER:
            moved = ReEnter.read(payload)
            section = moved.section
            more = {"reason": moved.reason.name.lower(), "old_seqs": _few(moved.old_seqs)}
            more |= _request(moved.request)
        case Kind.HALF:
            section = Half.read(payload).section
        case Kind.END:
            end = End.read(payload)
            section = end.section
            more = {"half": end.half_place, "outcome": "commit" if section is not None else "rollback"}
        case Kind.TOPIC:
            change = TopicChange.read(payload)
            more = {"topic": dict(change.topic), "is_deleted": change.is_deleted}
        case Kind.SEND_BACK:
            sent_back = SendBack.read(payload)
            section = sent_back.section
            more = {"settles": len(sent_back.settles)}
        case Kind.GAP:
            gap = Gap.read(payload)
            more = {
                "lost_seqs": [gap.first_seq, gap.next_seq],
                "lost_offsets": [list(queue) for queue in gap.queues],
            }
    if section is not None:
        more.update(count=section.count, first_seq=section.first_seq)
    return {"kind": name, **more}, section


def _describe_change(frame: Frame) -> tuple[Line, Section | None]:
    """The particulars of a consumer-log frame."""
    if frame.kind == KIND_OPENING:
        return {"kind": "opening"}, None
    if frame.kind == KIND_GROUP:
        return {"kind": "group", **json.loads(bytes(frame.payload))}, None
    if frame.kind != KIND_CHANGES:
        raise CorruptionError(f"unknown kind {frame.kind}")
    rows = np.frombuffer(frame.payload, CHANGE)
    changes = [
        f"{ACT_NAMES.get(int(row['act']), '?')} group {row['group_id']} topic {row['topic_id']} "
        f"queue {row['queue_id']} offset {row['offset']}"
        for row in rows[:5]
    ]
    return {"kind": "changes", "count": len(rows), "changes": changes}, None


def _message(message: StoredMessage) -> Line:
    line: Line = {"id": message.id, "topic_id": message.topic_id, "queue_id": message.queue_id}
    line["stored_at"] = format_time(message.stored_at_ms)
    if message.deliver_at_ms != NO_TIME_MS:
        line["deliver_at"] = format_time(message.deliver_at_ms)
    if message.flags:
        line["flags"] = _flag_names(message.flags)
    for name in ("tag", "keys", "message_group", "properties"):
        value = getattr(message, name)
        if value:
            line[name] = list(value) if isinstance(value, tuple) else value
    line["body_bytes"] = len(message.body)
    line["body"] = message.body[:_BODY_SHOWN].decode(errors="backslashreplace")
    return line


def _request(request: Request | None) -> Line:
    if request is None:
        return {}
    return {"request": request.id.hex(), "part": f"{request.part} of {request.parts}"}


def _few(numbers: Any) -> str:
    shown = ", ".join(str(number) for number in numbers[:4].tolist())
    return shown if len(numbers) <= 4 else f"{shown} … {numbers[-1]} ({len(numbers)})"


def _vias(via: Any) -> list[str]:
    return [Via(value).name.lower() for value in np.unique(via).tolist()]


def _flag_names(flags: int) -> list[str]:
    return [name for bit, name in _FLAGS.items() if flags & bit]


# -- checkpoints ----------------------------------------------------------------------------------


def dump_checkpoint(data: bytes) -> Iterator[Line]:
    """One generation of the identity, of a log's head record, of the index or of the consumers' state."""
    found = decode_checkpoint(data)
    if found is None:
        raise CorruptionError("this generation is torn or no checkpoint; the other generation counts")
    line: Line = {"what": "checkpoint", "format": found.version, "generation": found.generation}
    content = found.content
    if content[:1] == b"{":
        yield {**line, **json.loads(content)}
        return
    if len(content) == HEAD_BYTES:  # the index's content begins with a length and is never so short
        yield {**line, "log_begins_at": decode_head(content)}
        return
    try:
        yield {**line, **checkpoint_head(content)}
    except ValueError as error:
        raise CorruptionError(f"the checkpoint is whole but its content is not known: {error}") from error


# -- tables ---------------------------------------------------------------------------------------


def dump_entries(data: ByteArray, first_row: int) -> Iterator[Line]:
    """Rows of an entries chunk; the first has the seq that names the file."""
    for index, row in enumerate(_rows(data, ENTRY)):
        place = int(row["place"])
        yield {
            "what": "entry",
            "seq": first_row + index,
            "deliver_at": format_time(int(row["deliver_at_ms"])),
            "stored_at": format_time(int(row["stored_at_ms"])),
            "topic_id": int(row["topic_id"]),
            "queue_id": int(row["queue_id"]),
            "frame": frame_offset_of(place),
            "row": row_of(place),
            "size": int(row["size"]),
            "flags": _flag_names(int(row["flags"])),
            "id_hash": f"{int(row['id_hash']):016x}",
        }


def dump_queue(data: ByteArray, first_row: int) -> Iterator[Line]:
    """Rows of a queue chunk; the first has the queue offset that names the file."""
    for index, row in enumerate(_rows(data, QUEUE_ROW)):
        place, due_ms = int(row["place"]), int(row["deliver_at_ms"])
        released_ms = int(row["released_at_ms"])
        line: Line = {"what": "queue row", "offset": first_row + index, "frame": frame_offset_of(place)}
        line.update(row=row_of(place), released_at=format_time(released_ms))
        if due_ms != NO_TIME_MS:
            line.update(seq=int(row["seq"]), deliver_at=format_time(due_ms), late_ms=released_ms - due_ms)
        line["via"] = Via(int(row["via"])).name.lower()
        line["rolls"] = rolls_of(int(row["placements"]))
        yield line


def _rows(data: ByteArray, dtype: Any) -> Any:
    whole = len(data) // dtype.itemsize
    if not whole or len(data) % dtype.itemsize:
        raise CorruptionError(f"{len(data)} bytes are no whole number of rows of {dtype.itemsize} bytes")
    return data.view(dtype)


def dump_find_run(data: ByteArray) -> Iterator[Line]:
    """Header and pairs of a find run."""
    header = decode_run_header(data[:RUN_HEADER_BYTES].tobytes(), len(data))
    if header is None:
        raise CorruptionError("this is no whole find run; delete it, opening makes it again from the log")
    yield {
        "what": "find run",
        "pairs": header.count,
        "from_offset": header.first_offset,
        "end_offset": header.end_offset,
        "is_sound": is_whole(data),
    }
    pairs = data[RUN_HEADER_BYTES:].view("<u8")
    for hashed, ref in zip(pairs[: header.count], pairs[header.count :], strict=True):
        if frames := request_frames_in(np.array([ref])):
            yield {"what": "pair", "hash": f"{int(hashed):016x}", "request_in_frame": frames[0]}
        elif ref >= PLACE_BIT:
            place = int(ref & ~PLACE_BIT)
            yield {"what": "pair", "hash": f"{int(hashed):016x}", "frame": place >> 16, "row": place & 0xFFFF}
        else:
            yield {"what": "pair", "hash": f"{int(hashed):016x}", "seq": int(ref)}
