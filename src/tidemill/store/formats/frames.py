"""The kinds of frames in the commit log and their payloads.

    kind          payload (little-endian, format 1; `section` is the message format of message_format.py)
    1 BASE        JSON: next seq, topics, next offset of every queue, totals; opens every segment
    2 MESSAGES    section
    3 RELEASE     counts (4 x u32: groups, seqs, by-value, placements_kind), groups, seqs i64, via u8,
                  by-value indexes u32, placements u16 (if placements_kind is 2: a frame of format 2),
                  section of the messages released by value (if any)
    4 CANCEL      counts (2 x u32: seqs, topics), seqs i64, topic ids u32, how many of each topic u32,
                  request (if it has an id, see request_format.py: a frame of format 3)
    5 RE-ENTER    count u32, reason u8, has-request u8, zero u16, old seqs i64, request (if it has an
                  id: a frame of format 3), section (one new message for each old seq)
    6 HALF        count u32, zero u32, places replaced u64 (0: none), section
    7 END         place of the half u64, is-commit u64, section (commit only)
    8 TOPIC       JSON: what changed about a topic
    9 SEND-BACK   JSON length u64, JSON list of what each message settles, section
   10 GAP         JSON: seqs and queue offsets whose frames are lost, totals; a frame of format 3

A negative seq `~s` in a release or re-enter frame names a seq `s` inside a gap: the frame that made it is
lost. Like a seq below the log's head it was pending when the frame was written.

Arrays are padded to 8 bytes. Each payload is one frozen dataclass with `parts` (to write) and `read`.
Append and replay apply the same dataclasses, so there is one rule for both.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from tidemill.log.arrays import I64, U8, U16, U32, U64, Rows
from tidemill.log.disk import Bytes
from tidemill.log.frame import PLAIN_FORMAT
from tidemill.store.formats.message_format import Section
from tidemill.store.formats.placements_format import (
    PLACEMENTS_EACH,
    check_placements_kind,
    placements_kind_of,
    placements_of,
)
from tidemill.store.formats.request_format import Request

# Formats of frames that an older version refuses: what it would not understand.
_PLACEMENTS_FORMAT = 2
GAP_FORMAT = _REQUEST_FORMAT = 3


class Kind(IntEnum):
    BASE = 1
    MESSAGES = 2
    RELEASE = 3
    CANCEL = 4
    RE_ENTER = 5
    HALF = 6
    END = 7
    TOPIC = 8
    SEND_BACK = 9
    GAP = 10


RELEASE_GROUP = np.dtype(
    [("topic_id", "<u4"), ("queue_id", "<u2"), ("zero", "<u2"), ("first_offset", "<i8"), ("count", "<i8")]
)
assert RELEASE_GROUP.itemsize == 24


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class _Reader:
    """Takes arrays off a payload one after another, skipping their padding."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._at = 0

    def array(self, dtype: Any, count: int) -> Rows:
        found = np.frombuffer(self._payload, dtype, count, self._at)
        self._at += (found.nbytes + 7) // 8 * 8
        return found

    def text(self, length: int) -> bytes:
        return self.array(np.uint8, length).tobytes()

    def request(self) -> Request:
        request, size = Request.read(self._payload[self._at :])
        self._at += size
        return request

    def section(self) -> Section | None:
        rest = self.rest()
        return Section(rest) if len(rest) else None

    def rest(self) -> memoryview:
        return self._payload[self._at :]


def _present(section: Section | None) -> Section:
    assert section is not None
    return section


@dataclass(frozen=True, slots=True)
class Base:
    """What a reader must know to understand the log from here on."""

    next_seq: int
    topics: Sequence[Mapping[str, Any]]
    next_offsets: Mapping[str, Sequence[int]]  # topic id -> next offset of each queue
    totals: Mapping[str, Any]

    def parts(self) -> list[Bytes]:
        content = {
            "next_seq": self.next_seq,
            "topics": list(self.topics),
            "next_offsets": dict(self.next_offsets),
            "totals": dict(self.totals),
        }
        return [json.dumps(content, separators=(",", ":")).encode()]

    @classmethod
    def read(cls, payload: memoryview) -> Base:
        content = json.loads(bytes(payload))
        return cls(content["next_seq"], content["topics"], content["next_offsets"], content["totals"])


@dataclass(frozen=True, slots=True)
class Release:
    """Timed messages that went into their topics, in queue order."""

    groups: Rows  # RELEASE_GROUP
    seqs: I64
    via: U8
    placements: U16  # rolls + 1, 0 for not counted
    value_indexes: U32  # which of `seqs` carry their bytes along, ascending
    section: Section | None
    section_parts: Sequence[Bytes] = ()

    @property
    def version(self) -> int:
        """The format of its frame."""
        return _PLACEMENTS_FORMAT if placements_kind_of(self.placements) == PLACEMENTS_EACH else PLAIN_FORMAT

    def parts(self) -> list[Bytes]:
        placements_kind = placements_kind_of(self.placements)
        counts = np.array([len(self.groups), len(self.seqs), len(self.value_indexes), placements_kind], "<u4")
        return [
            b"".join(
                (
                    counts.tobytes(),
                    self.groups.tobytes(),
                    self.seqs.astype("<i8").tobytes(),
                    _padded(self.via.tobytes()),
                    _padded(self.value_indexes.astype("<u4").tobytes()),
                    _padded(self.placements.astype("<u2").tobytes())
                    if placements_kind == PLACEMENTS_EACH
                    else b"",
                )
            ),
            *self.section_parts,
        ]

    @classmethod
    def read(cls, payload: memoryview) -> Release:
        reader = _Reader(payload)
        group_count, count, value_count, placements_kind = reader.array("<u4", 4).tolist()
        check_placements_kind(placements_kind)
        groups = reader.array(RELEASE_GROUP, group_count)
        seqs = reader.array("<i8", count)
        via = reader.array("u1", count)
        value_indexes = reader.array("<u4", value_count)
        placements = (
            reader.array("<u2", count)
            if placements_kind == PLACEMENTS_EACH
            else placements_of(placements_kind, count)
        )
        return cls(groups, seqs, via, placements, value_indexes, reader.section())


@dataclass(frozen=True, slots=True)
class Cancel:
    """Timed messages called off, and how many of each topic: their entries may be cut before this frame."""

    seqs: I64
    topic_ids: U32
    counts: U32
    request: Request | None = None

    @property
    def version(self) -> int:
        """The format of its frame."""
        return PLAIN_FORMAT if self.request is None else _REQUEST_FORMAT

    def parts(self) -> list[Bytes]:
        return [
            struct.pack("<II", len(self.seqs), len(self.topic_ids)),
            self.seqs.astype("<i8").tobytes(),
            _padded(self.topic_ids.astype("<u4").tobytes()),
            _padded(self.counts.astype("<u4").tobytes()),
            b"" if self.request is None else self.request.encode(),
        ]

    @classmethod
    def read(cls, payload: memoryview) -> Cancel:
        reader = _Reader(payload)
        count, topic_count = reader.array("<u4", 2).tolist()
        seqs = reader.array("<i8", count)
        topic_ids, counts = reader.array("<u4", topic_count), reader.array("<u4", topic_count)
        return cls(seqs, topic_ids, counts, reader.request() if len(reader.rest()) else None)


class ReEnterReason(IntEnum):
    RESCHEDULE = 1
    RETENTION = 2


@dataclass(frozen=True, slots=True)
class ReEnter:
    """Messages that moved: each old seq becomes *moved*, and a new one, with the bytes, is pending."""

    reason: ReEnterReason
    old_seqs: I64
    section: Section
    section_parts: Sequence[Bytes] = ()
    request: Request | None = None

    @property
    def version(self) -> int:
        """The format of its frame."""
        return PLAIN_FORMAT if self.request is None else _REQUEST_FORMAT

    def parts(self) -> list[Bytes]:
        header = struct.pack("<IBBxx", len(self.old_seqs), self.reason, self.request is not None)
        request = b"" if self.request is None else self.request.encode()
        return [header + self.old_seqs.astype("<i8").tobytes() + request, *self.section_parts]

    @classmethod
    def read(cls, payload: memoryview) -> ReEnter:
        reader = _Reader(payload)
        count, reason = reader.array("<u4", 2).tolist()
        old_seqs = reader.array("<i8", count)
        request = reader.request() if reason >> 8 & 0xFF else None
        section = _present(reader.section())
        return cls(ReEnterReason(reason & 0xFF), old_seqs, section, request=request)


@dataclass(frozen=True, slots=True)
class Half:
    """First halves of transactions: stored, in no queue, without a seq."""

    replaces: U64  # place of the same half further down the log, 0 for a new one
    section: Section
    section_parts: Sequence[Bytes] = ()

    def parts(self) -> list[Bytes]:
        header = struct.pack("<II", len(self.replaces), 0)
        return [header + self.replaces.astype("<u8").tobytes(), *self.section_parts]

    @classmethod
    def read(cls, payload: memoryview) -> Half:
        reader = _Reader(payload)
        count, _ = reader.array("<u4", 2)
        replaces = reader.array("<u8", int(count))
        return cls(replaces, _present(reader.section()))


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction. A commit carries the bytes again, because it may make a seq."""

    half_place: int
    section: Section | None  # None: rolled back
    section_parts: Sequence[Bytes] = ()

    def parts(self) -> list[Bytes]:
        return [struct.pack("<QQ", self.half_place, bool(self.section_parts)), *self.section_parts]

    @classmethod
    def read(cls, payload: memoryview) -> End:
        reader = _Reader(payload)
        half_place, _ = reader.array("<u8", 2)
        return cls(int(half_place), reader.section())


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic made, changed or deleted; `cancel_below_seq` cancels what waits for it below that seq."""

    topic: Mapping[str, Any]
    is_deleted: bool = False
    cancel_below_seq: int = 0
    cancelled_count: int = 0  # how many that were: their entries may be cut before this frame

    def parts(self) -> list[Bytes]:
        content = {
            "topic": dict(self.topic),
            "is_deleted": self.is_deleted,
            "cancel_below_seq": self.cancel_below_seq,
            "cancelled_count": self.cancelled_count,
        }
        return [json.dumps(content, separators=(",", ":")).encode()]

    @classmethod
    def read(cls, payload: memoryview) -> TopicChange:
        content = json.loads(bytes(payload))
        return cls(**content)


@dataclass(frozen=True, slots=True)
class Settlement:
    """The delivery that a message sent back takes the place of."""

    group: str
    topic_id: int
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class SendBack:
    """Messages that a consumer gave back or that ran out of attempts, each settling its delivery."""

    settles: Sequence[Settlement]
    section: Section
    section_parts: Sequence[Bytes] = ()

    def parts(self) -> list[Bytes]:
        rows = [[s.group, s.topic_id, s.queue_id, s.offset] for s in self.settles]
        text = json.dumps(rows, separators=(",", ":")).encode()
        return [struct.pack("<Q", len(text)) + _padded(text), *self.section_parts]

    @classmethod
    def read(cls, payload: memoryview) -> SendBack:
        reader = _Reader(payload)
        (length,) = reader.array("<u8", 1)
        settles = [Settlement(*row) for row in json.loads(reader.text(int(length)))]
        return cls(settles, _present(reader.section()))


@dataclass(frozen=True, slots=True)
class Gap:
    """What `tidemill salvage` could not read: numbers that were given away by frames that are lost.

    The seqs `[first_seq, next_seq)` count as moved, with nothing they moved to. The rows of the queues are
    expired ones. Totals are as the next readable frame says, None where none does.
    """

    first_seq: int
    next_seq: int
    queues: Sequence[tuple[int, int, int, int]]  # topic id, queue id, first offset, end offset
    totals: Mapping[str, Any] | None = None

    def parts(self) -> list[Bytes]:
        content = {
            "first_seq": self.first_seq,
            "next_seq": self.next_seq,
            "queues": [list(queue) for queue in self.queues],
            "totals": None if self.totals is None else dict(self.totals),
        }
        return [json.dumps(content, separators=(",", ":")).encode()]

    @classmethod
    def read(cls, payload: memoryview) -> Gap:
        content = json.loads(bytes(payload))
        queues = [tuple(queue) for queue in content["queues"]]
        return cls(content["first_seq"], content["next_seq"], queues, content["totals"])
