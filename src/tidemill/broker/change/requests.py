"""Requests with an id: a cancel or reschedule that is asked for twice is carried out once, with one answer.

Owns the hash that distinguishes requests with the same id, and what an earlier copy of a request has done,
read from its frames of the last hour. `Canceller` asks for it under the writer lock, before it looks at any
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from tidemill.core.durations import format_duration
from tidemill.core.errors import CorruptionError, RequestIdReusedError
from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.core.request_ids import RequestKey, request_key, shown
from tidemill.log.arrays import I64, U32, U64
from tidemill.log.segments import SegmentedLog
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.find_runs import request_frames_in
from tidemill.store.find.hashing import request_hash
from tidemill.store.formats.frames import Cancel, Kind, ReEnter
from tidemill.store.formats.request_format import Request
from tidemill.store.formats.texts import slices_of
from tidemill.store.message_store import MessageStore

RequestId = str | RequestKey | None  # a text; or the key of a user's; None: the request has none
Field = str | int | memoryview | None


@dataclass(frozen=True, slots=True)
class NamedRows:
    """The messages that a request names, in its order; topics as names and which of them each row has."""

    names: Sequence[str]
    which: I64
    ids: pa.Array
    seqs: I64

    @classmethod
    def of(cls, topics: pa.Array, ids: pa.Array, seqs: I64) -> NamedRows:
        encoded = topics.dictionary_encode()
        return cls(encoded.dictionary.to_pylist(), encoded.indices.to_numpy(), ids, seqs)

    def fields(self) -> Iterator[Field]:
        """All of it, to be hashed."""
        texts, _, lengths = slices_of(self.ids)
        yield len(self.names)
        yield from self.names
        yield self.which.astype("<i4").data
        yield lengths.astype("<i4").data
        yield texts.data
        yield self.seqs.astype("<i8").data


def asked(request_id: RequestId, verb: str, *fields: Field | NamedRows) -> Request | None:
    """The request of a call, as its first frame has it; None where it has no id."""
    if request_id is None:
        return None
    key = request_id if isinstance(request_id, RequestKey) else request_key(request_id)
    return Request(key.kept, fingerprint(verb, *fields), text=key.text)


def fingerprint(verb: str, *fields: Field | NamedRows) -> int:
    """A hash of all that a request says. It is kept in frames, so it never changes."""
    hashed = blake2b(digest_size=8, person=b"tidemill-request")
    for field in (verb, *fields):
        for value in field.fields() if isinstance(field, NamedRows) else (field,):
            kind, data = _bytes_of(value)
            hashed.update(
                b"%b%d:" % (kind, memoryview(data).nbytes)
            )  # so that no two lists of values look alike
            hashed.update(data)
    return int.from_bytes(hashed.digest(), "little")


def _bytes_of(value: Field) -> tuple[bytes, bytes | memoryview]:
    """The kind of a value, and its bytes."""
    match value:
        case None:
            return b"n", b""
        case str():
            return b"s", value.encode("utf-8", "surrogatepass")
        case int():
            return b"i", b"%d" % value
        case _:
            return b"b", value


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier copy of a request has done: its frames, at least one."""

    parts: Sequence[RecordedPart]

    @property
    def is_complete(self) -> bool:
        last = self.parts[-1].request
        return last.part == last.parts

    @property
    def count(self) -> int:
        """How many messages it changed."""
        last = self.parts[-1]
        return last.request.done + len(_seqs(last))

    @property
    def rows(self) -> I64:
        """The rows of the request that it changed."""
        return np.concatenate([part.request.rows for part in self.parts]).astype(np.int64)

    def moved_rows(self) -> dict[int, tuple[int, int]]:
        """The new seq and time of each row that it moved."""
        found: dict[int, tuple[int, int]] = {}
        for part in self.parts:
            assert isinstance(part.change, ReEnter)
            first_seq, due = part.change.section.first_seq, part.change.section.columns().deliver_at_ms
            pairs = zip(part.request.rows.tolist(), part.request.indexes.tolist(), strict=True)
            found.update((row, (first_seq + index, int(due[index]))) for row, index in pairs)
        return found

    def moved_ids(self) -> U64:
        """The hashes of topic and id of the messages that it moved."""
        changes = [part.change for part in self.parts if isinstance(part.change, ReEnter)]
        return np.concatenate([change.section.columns().id_hash for change in changes])

    def moved_to_ms(self) -> int:
        """The time to which it moved the first message."""
        change = self.parts[0].change
        assert isinstance(change, ReEnter)
        return int(change.section.columns().deliver_at_ms[0])


def earlier(store: MessageStore, request: Request | None, now_ms: int) -> Earlier | None:
    """What was done of this request before; None: nothing. Call under the writer lock."""
    if request is None:
        return None
    parts = recorded_parts(store.log, store.find, request.id, now_ms)
    if not parts:
        return None
    if parts[-1].request.fingerprint != request.fingerprint:
        raise RequestIdReusedError(
            f"the request id {shown(request.text)} was used within the last "
            f"{format_duration(DEDUPLICATION_MS)} for another request; nothing was changed. Use a new id for "
            "each request, and the same id only to repeat the very same request"
        )
    return Earlier(parts)


def _seqs(part: RecordedPart) -> I64:
    return part.change.old_seqs if isinstance(part.change, ReEnter) else part.change.seqs


def parts_of(
    request: Request, bounds: Sequence[tuple[int, int]], before: Earlier | None, rows: I64, indexes: I64
) -> list[Request]:
    """The request as the frame of each part has it, behind what was done before.

    `rows` are the rows of the request that name the messages, `indexes` which message each of them names;
    both are empty where the request names none by its handle.
    """
    first = before.parts[-1].request.part + 1 if before is not None else 1
    done = before.count if before is not None else 0
    order = np.argsort(indexes, kind="stable")
    rows, indexes = rows[order], indexes[order]
    requests = []
    for number, (start, end) in enumerate(bounds):
        low, high = np.searchsorted(indexes, (start, end)).tolist()
        requests.append(
            replace(
                request,
                part=first + number,
                parts=first + len(bounds) - 1,
                done=done + start,
                rows=_u32(rows[low:high]),
                indexes=_u32(indexes[low:high] - start),
            )
        )
    return requests


def _u32(numbers: I64) -> U32:
    return numbers.astype(np.uint32)


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
