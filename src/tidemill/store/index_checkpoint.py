"""The index checkpoint: the derived state as of one log offset, so that opening need not read the whole log.

Owns `checkpoint.0/1` in the index directory: a JSON head (log offset, topics, totals, open transactions …)
and the packed ledger and due counts behind it. Entries, queues and find runs are files of their own; they
are synced before the checkpoint that relies on them is written.

It is taken in two steps: what the state is at one moment is noted under the writer lock, which is short
however much is pending; turning that into bytes needs no lock.

Content: u64 length of the JSON, JSON, ledger bytes, due-count bytes. Format 2: entries and queue rows carry
checks. An index of format 1 is derived again from the log.

The head says of which log it is the state (`origin`): marks of the frames that open the first and the last
segment. A checkpoint that was copied from another data directory has a valid checksum of its own; believed,
it would put the state of that directory in the place of this one. Only bytes that read back speak against a
checkpoint: where the log is damaged or missing it is the only sign of what is lost. One of format 2 without
an origin is read as well.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tidemill.core.errors import CorruptionError
from tidemill.log.disk import Bytes
from tidemill.log.frame import Frame
from tidemill.store.due_counts import DueCounts, encode_counts
from tidemill.store.formats.frames import Base, Kind
from tidemill.store.indexes import Indexes
from tidemill.store.ledger import Ledger, LedgerCopy
from tidemill.store.open_transactions import OpenHalf, OpenTransactions

INDEX_FORMAT = 2
_LENGTH = struct.Struct("<Q")
_KEYS = frozenset(
    ("offset", "next_seq", "topics", "next_offsets", "totals", "near_floor", "open_halves", "ledger_bytes")
)


@dataclass(frozen=True, slots=True)
class NotedIndexes:
    """The derived state of one moment."""

    offset: int
    base: Base
    near_floor: int
    level_floor: int
    open_halves: dict[str, OpenHalf]
    ledger: LedgerCopy
    due_counts: dict[int, dict[int, int]]
    origin: Mapping[str, Any] | None = None  # of which log this is the state

    def encode(self) -> list[Bytes]:
        """The content of the checkpoint, in parts; once, and without the writer lock."""
        ledger = self.ledger.parts()
        head = {
            "offset": self.offset,
            "next_seq": self.base.next_seq,
            "topics": self.base.topics,
            "next_offsets": self.base.next_offsets,
            "totals": self.base.totals,
            "near_floor": self.near_floor,
            "level_floor": self.level_floor,
            "open_halves": {key: asdict(half) for key, half in self.open_halves.items()},
            "ledger_bytes": sum(map(len, ledger)),
        }
        if self.origin is not None:
            head["origin"] = self.origin
        text = json.dumps(head).encode()
        return [_LENGTH.pack(len(text)), text, *ledger, encode_counts(self.due_counts)]


def note_indexes(indexes: Indexes, offset: int) -> NotedIndexes:
    """The state of `indexes`, which reflect the log up to `offset`. Call under the writer lock."""
    return NotedIndexes(
        offset,
        indexes.base(),
        indexes.near_floor,
        indexes.level_floor,
        indexes.open_transactions.copy(),
        indexes.ledger.begin_copy(),
        indexes.due_counts.snapshot(None),
    )


def checkpoint_head(content: bytes) -> dict[str, Any]:
    """The JSON head of a checkpoint; `ValueError` if the content is not an index checkpoint's."""
    if len(content) < _LENGTH.size:
        raise ValueError("not an index checkpoint: too short")
    (length,) = _LENGTH.unpack_from(content)
    head = json.loads(content[_LENGTH.size : _LENGTH.size + length])
    if not isinstance(head, dict) or not _KEYS.issubset(head):
        raise ValueError("not an index checkpoint: required fields are missing")
    return head


def base_in(head: Mapping[str, Any]) -> Base:
    """The state at the checkpoint, as a base frame would say it."""
    return Base(head["next_seq"], head["topics"], head["next_offsets"], head["totals"])


def restore_indexes(indexes: Indexes, content: bytes) -> int:
    """Bring `indexes` to the state of a checkpoint; returns the log offset it reflects."""
    head = checkpoint_head(content)
    indexes.start_from(base_in(head))
    (length,) = _LENGTH.unpack_from(content)
    ledger_start = _LENGTH.size + length
    ledger_end = ledger_start + head["ledger_bytes"]
    indexes.ledger = Ledger.decode(content[ledger_start:ledger_end])
    indexes.due_counts = DueCounts.decode(content[ledger_end:])
    indexes.near_floor = head["near_floor"]
    indexes.level_floor = head.get("level_floor", indexes.ledger.next_seq)  # without one: no levels yet
    indexes.open_transactions = OpenTransactions(
        {key: OpenHalf(**half) for key, half in head["open_halves"].items()}
    )
    return int(head["offset"])


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
