"""Plain messages in columns: what many small sends are made of, written as rows without a loop per message.

Owns the way from columns to a section in the row encoding (`message_format.py` says what its bytes mean and
reads them back). Plain is what nearly every single send is: on no level, in no message group.

Their writer knows their columns already. So they are applied from those, and not read back from the
log as other frames are: that is a third of what a small batch costs. Invariant: the columns of what is
written are those that its bytes would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from tidemill.core.frozen import frozen
from tidemill.core.model import NO_TIME_MS, MessageType
from tidemill.log.arrays import I64, U8, U64, Rows, each_of
from tidemill.store.find.hashing import PURPOSE_KEY, hash_texts, seed_of, topic_seeds
from tidemill.store.formats.message_format import ROW, ROW_STRUCT, Columns, rows_header

_ROW_NAMES: tuple[str, ...] = ROW.names or ()
_NO_ROWS = np.empty(0, np.int64)
_NO_HASHES = np.empty(0, np.uint64)


@frozen
class Written:
    """A section that was just written: its bytes, and what reading them back would give."""

    data: bytes
    count: int
    first_seq: int
    known: Columns
    timed: I64  # rows that are

    def columns(self) -> Columns:
        return self.known


@frozen
class PlainRows:
    """Columns of messages that are all stored at the same moment. Texts are encoded already."""

    stored_at_ms: int
    topic_ids: I64 | int  # one number stands for all messages, here and below
    queue_ids: I64
    flags: U8 | int
    deliver_at_ms: I64 | int  # NO_TIME_MS: not timed
    timed: I64  # rows that are
    ids: Sequence[bytes]
    id_hashes: U64
    tags: Sequence[bytes] | None  # None: no message has any
    keys: Sequence[bytes] | None
    properties: Sequence[bytes] | None
    bodies: Sequence[bytes]
    born_at_ms: I64 | None = None  # None: all when they are stored

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def are_all_timed(self) -> bool:
        return len(self.timed) == len(self.bodies)

    def places(self) -> tuple[I64, I64, I64]:
        """Topic id, queue and due time of each message."""
        count = len(self.bodies)
        return each_of(self.topic_ids, count), self.queue_ids, each_of(self.deliver_at_ms, count)

    def written(self, queue_offsets: I64 | int, first_seq: int) -> Written:
        """The section of these messages, whose timed ones have the seqs from `first_seq` on."""
        count = len(self.bodies)
        texts = {
            "id_bytes": self.ids,
            "tag_bytes": self.tags,
            "keys_bytes": self.keys,
            "properties_bytes": self.properties,
            "body_bytes": self.bodies,
        }
        given = [column for column in texts.values() if column is not None]
        lengths = {name: _lengths(column) for name, column in texts.items() if column is not None}
        born_at_ms = self.stored_at_ms if self.born_at_ms is None else self.born_at_ms
        rows = _filled_rows(
            count,
            stored_at_ms=self.stored_at_ms,
            born_at_ms=born_at_ms,
            deliver_at_ms=self.deliver_at_ms,
            queue_offset=queue_offsets,
            topic_id=self.topic_ids,
            queue_id=self.queue_ids,
            type=int(MessageType.DELAY if len(self.timed) else MessageType.NORMAL),
            flags=self.flags,
            **lengths,
        )
        if 0 < len(self.timed) < count:
            rows["type"][rows["deliver_at_ms"] == NO_TIME_MS] = MessageType.NORMAL
        heap = chain.from_iterable(zip(*given, strict=True))
        data = b"".join((rows_header(count, first_seq), rows.tobytes(), *heap))
        size = ROW.itemsize + sum(lengths.values())
        return Written(data, count, first_seq, self._columns(rows, size), self.timed)

    def _columns(self, rows: Rows, size: I64 | int) -> Columns:
        key_rows, key_hashes = self._key_hashes()
        return Columns(
            topic_id=rows["topic_id"],
            queue_id=rows["queue_id"],
            type=rows["type"],
            level=rows["level"],
            flags=rows["flags"],
            stored_at_ms=rows["stored_at_ms"],
            deliver_at_ms=rows["deliver_at_ms"],
            queue_offset=rows["queue_offset"],
            size=each_of(size, len(rows)),
            id_hash=self.id_hashes,
            key_rows=key_rows,
            key_hashes=key_hashes,
        )

    def _key_hashes(self) -> tuple[I64, U64]:
        """The rows that have keys, once for each of their keys, and the hash of each key."""
        if self.keys is None:
            return _NO_ROWS, _NO_HASHES
        pairs = [(row, key) for row, keys in enumerate(self.keys) if keys for key in keys.split(b" ")]
        if not pairs:
            return _NO_ROWS, _NO_HASHES
        key_rows = np.array([row for row, _ in pairs], np.int64)
        return key_rows, hash_texts([key for _, key in pairs], self._key_seeds(key_rows))

    def _key_seeds(self, key_rows: I64) -> U64 | int:
        if isinstance(self.topic_ids, int):
            return seed_of(self.topic_ids, PURPOSE_KEY)
        return topic_seeds(self.topic_ids[key_rows], PURPOSE_KEY)


def _lengths(texts: Sequence[bytes]) -> I64 | int:
    """How long each is, or, where that is the same, how long all are."""
    lengths = list(map(len, texts))
    first = lengths[0]
    return first if lengths.count(first) == len(lengths) else np.array(lengths, np.int64)


def _filled_rows(count: int, **columns: Any) -> Rows:
    """So many rows with these columns, each an array, or the one number that all have; the rest is zero."""
    same = [value if type(value := columns.get(name, 0)) is int else 0 for name in _ROW_NAMES]
    rows: Rows = np.frombuffer(bytearray(ROW_STRUCT.pack(*same) * count), ROW)
    for name, value in columns.items():
        if type(value) is not int:
            rows[name] = value
    return rows
