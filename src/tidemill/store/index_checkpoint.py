"""The index checkpoint: the derived state as of one log offset, so that opening need not read the whole log.

Owns `checkpoint.0/1` in the index directory: a JSON head (log offset, topics, totals, open transactions …)
and the packed ledger and due counts behind it. Entries, queues and find runs are files of their own; they
are synced before the checkpoint that relies on them is written.

It is taken in two steps: what the state is at one moment is noted under the writer lock, which is short
however much is pending; turning that into bytes needs no lock.

Content: u64 length of the JSON, JSON, ledger bytes, due-count bytes. Format 2: entries and queue rows carry
checks. An index of format 1 is derived again from the log. The head says of which log it is the state
(`origin`, checkpoint_origin.py); one of format 2 that does not say so is read as well.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.log.disk import Bytes
from tidemill.store.due_counts import DueCounts, encode_counts
from tidemill.store.formats.frames import Base
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
    origin: Mapping[str, Any] | None = None  # of which log this is the state (checkpoint_origin.py)

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
