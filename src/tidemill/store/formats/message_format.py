"""A section: messages as they lie inside a frame's payload, in one of two encodings.

    offset  bytes  field
    0       1      encoding: 1 rows, 2 Arrow
    1       3      zero
    4       4      message count
    8       8      first seq: the timed messages of the section have the seqs from here on, in row order
    16      n      rows:  `ROW` x count, then for each row id, tag, keys, message group, properties, body
                   Arrow: one IPC record batch of `SCHEMA` (without the schema message)

Little-endian, format 1. Few messages (single sends) are written as rows, which cost 60 bytes each beside
their text; a bulk put keeps its Arrow batch. Keys are joined by a space; properties are a JSON object, or
empty. The queue offset of a timed message is -1, or says when it arrived (`original_order.py`).

Owns the bytes of messages and nothing else. `Columns` is what the indexes need of every message; it comes
out of either encoding without a loop per message.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import CorruptionError
from tidemill.core.frozen import frozen
from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage
from tidemill.log.arrays import I64, U8, U16, U32, U64, Rows
from tidemill.log.disk import Bytes
from tidemill.store.find.hashing import (
    PURPOSE_ID,
    PURPOSE_KEY,
    hash_slices,
    hash_text,
    seed_of,
    topic_seeds,
)
from tidemill.store.formats.arrow_values import ArrowValues
from tidemill.store.formats.texts import hash_key_slices, slices_of

_HEADER = struct.Struct("<B3xIq")
_ENCODING_ROWS = 1
_ENCODING_ARROW = 2

ROW = np.dtype(
    [
        ("born_at_ms", "<i8"),
        ("stored_at_ms", "<i8"),
        ("deliver_at_ms", "<i8"),
        ("queue_offset", "<i8"),
        ("topic_id", "<u4"),
        ("queue_id", "<u2"),
        ("level", "<u2"),
        ("type", "<u1"),
        ("flags", "<u1"),
        ("id_bytes", "<u2"),
        ("tag_bytes", "<u2"),
        ("keys_bytes", "<u2"),
        ("group_bytes", "<u4"),
        ("properties_bytes", "<u4"),
        ("body_bytes", "<u4"),
    ]
)
ROW_STRUCT = struct.Struct("<4qI2H2B3H3I")  # the same bytes, quicker for one row
assert ROW.itemsize == ROW_STRUCT.size == 60
_LENGTHS = ("id_bytes", "tag_bytes", "keys_bytes", "group_bytes", "properties_bytes", "body_bytes")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("topic_id", pa.uint32(), nullable=False),
        pa.field("queue_id", pa.uint16(), nullable=False),
        pa.field("type", pa.uint8(), nullable=False),
        pa.field("level", pa.uint16(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
        pa.field("born_at_ms", pa.int64(), nullable=False),
        pa.field("stored_at_ms", pa.int64(), nullable=False),
        pa.field("deliver_at_ms", pa.int64(), nullable=False),
        pa.field("queue_offset", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("keys", pa.string(), nullable=False),
        pa.field("message_group", pa.string(), nullable=False),
        pa.field("properties", pa.string(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
# Made once: `json.dumps` makes an encoder for each text.
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


# The fields of `Columns` that are columns of a message.
_COLUMN_NAMES = [
    *("topic_id", "queue_id", "type", "level", "flags"),
    *("stored_at_ms", "deliver_at_ms", "queue_offset"),
]


@frozen
class Columns:
    """The fixed-width part of every message of a section, and its hashes."""

    topic_id: U32
    queue_id: U16
    type: U8
    level: U16
    flags: U8
    stored_at_ms: I64
    deliver_at_ms: I64
    queue_offset: I64
    size: U32 | I64
    id_hash: U64
    key_rows: I64  # rows that have a key, once for each of its keys
    key_hashes: U64

    @property
    def timed_rows(self) -> I64:
        return np.not_equal(self.deliver_at_ms, NO_TIME_MS).nonzero()[0]


# -- writing --------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str]) -> str:
    return _json(properties) if properties else ""


def rows_header(count: int, first_seq: int) -> bytes:
    return _HEADER.pack(_ENCODING_ROWS, count, first_seq)


def arrow_parts(batch: pa.RecordBatch, first_seq: int) -> list[Bytes]:
    """A section that keeps an Arrow batch of `SCHEMA`, as parts that need no copy."""
    assert batch.schema.equals(SCHEMA)
    return [_HEADER.pack(_ENCODING_ARROW, batch.num_rows, first_seq), memoryview(batch.serialize())]


def arrow_columns(batch: pa.RecordBatch, id_hash: U64 | None = None) -> Columns:
    """The columns of an Arrow batch of `SCHEMA`; `id_hash` where it is known."""
    topic_ids = _numbers(batch, "topic_id")
    ids, id_starts, id_lengths = slices_of(batch.column("id"))
    keys, key_starts, key_lengths = slices_of(batch.column("keys"))
    seeds = topic_ids.astype(np.uint64)
    key_rows, key_hashes = hash_key_slices(keys, key_starts, key_lengths, seeds)
    size = id_lengths + key_lengths + ROW.itemsize
    for name in ("tag", "message_group", "properties", "body"):
        size = size + slices_of(batch.column(name))[2]
    if id_hash is None:
        id_hash = hash_slices(ids, id_starts, id_lengths, topic_seeds(seeds, PURPOSE_ID))
    return Columns(
        **{name: _numbers(batch, name) for name in _COLUMN_NAMES},
        size=size.astype(np.uint32),
        id_hash=id_hash,
        key_rows=key_rows,
        key_hashes=key_hashes,
    )


# -- reading --------------------------------------------------------------------------------------


class Section:
    """Messages read back from a payload. Nothing is copied until a message is asked for."""

    has_levels = True  # perhaps

    def __init__(self, data: memoryview) -> None:
        encoding, self.count, self.first_seq = _HEADER.unpack_from(data)
        self._data = data[_HEADER.size :]
        self._batch: pa.RecordBatch | None = None
        self._values: ArrowValues | None = None
        self._rows: Rows | None = None
        if encoding == _ENCODING_ARROW:
            self._batch = pa.ipc.read_record_batch(pa.py_buffer(self._data), SCHEMA)
        elif encoding == _ENCODING_ROWS:
            self._rows = np.frombuffer(self._data, ROW, self.count)
            if self.count == 1:  # a single send: not worth six arrays
                self._totals: I64 = np.array([sum(self._lengths_of_one())])
            else:
                self._lengths: I64 = np.array([self._rows[name] for name in _LENGTHS], np.int64)
                self._totals = self._lengths.sum(axis=0)
            self._ends: I64 = self._totals.cumsum()
        else:
            raise CorruptionError(f"messages in unknown encoding {encoding}; run `tidemill check`")

    @property
    def is_arrow(self) -> bool:
        return self._batch is not None

    def body_sizes(self, rows: I64) -> I64:
        """How many bytes the bodies of these rows have."""
        if self._batch is not None:
            return slices_of(self._batch.column("body"))[2][rows]
        assert self._rows is not None
        return self._rows["body_bytes"][rows].astype(np.int64)

    def queue_offsets(self, rows: I64) -> I64:
        """The `queue_offset` of these rows."""
        if self._rows is None:
            assert self._batch is not None
            offsets: I64 = self._batch.column("queue_offset").to_numpy()
            return offsets[rows]
        return self._rows["queue_offset"][rows].astype(np.int64)

    def columns(self) -> Columns:
        return arrow_columns(self._batch) if self._batch is not None else self._columns_of_rows()

    def message(self, row: int) -> StoredMessage:
        return self._arrow_message(row) if self._batch is not None else self._row_message(row)

    def identity(self, row: int) -> tuple[str, int]:
        """Id and stored-at ms of one message, for callers that need no more."""
        if self._batch is not None:
            columns = self._batch.column("id"), self._batch.column("stored_at_ms")
            return columns[0][row].as_py(), columns[1][row].as_py()
        assert self._rows is not None
        fixed = self._rows[row]
        at = self.count * ROW.itemsize + int(self._ends[row]) - sum(int(fixed[name]) for name in _LENGTHS)
        return bytes(self._data[at : at + int(fixed["id_bytes"])]).decode(), int(fixed["stored_at_ms"])

    def messages(self) -> list[StoredMessage]:
        return self.messages_at(range(self.count))

    def messages_at(self, rows: Sequence[int]) -> list[StoredMessage]:
        """The messages of these rows, cheaper than one by one."""
        if self._batch is None:
            return [self._row_message(row) for row in rows]
        if self._values is None:
            self._values = ArrowValues(self._batch, _MESSAGE_FIELDS)
        columns = self._values.at(np.array(rows, np.int64))
        return [_message_of(*values) for values in zip(*columns, strict=True)]

    def to_arrow(self) -> pa.RecordBatch:
        """All messages as an Arrow batch of `SCHEMA`."""
        if self._batch is not None:
            return self._batch
        assert self._rows is not None
        return arrow_batch(self.messages(), self._rows["queue_offset"])

    # rows

    def _lengths_of_one(self) -> tuple[int, ...]:
        return ROW_STRUCT.unpack_from(self._data)[-len(_LENGTHS) :]

    def _columns_of_rows(self) -> Columns:
        rows = self._rows
        assert rows is not None
        if self.count == 1:
            return self._columns_of_one(rows)
        heap, lengths, total = self._heap(), self._lengths, self._totals
        starts = self._ends - total
        topic_ids = rows["topic_id"].astype(np.uint64)
        key_rows, key_hashes = hash_key_slices(heap, starts + lengths[0] + lengths[1], lengths[2], topic_ids)
        return Columns(
            **{name: rows[name] for name in _COLUMN_NAMES},
            size=(total + ROW.itemsize).astype(np.uint32),
            id_hash=hash_slices(heap, starts, lengths[0], topic_seeds(topic_ids, PURPOSE_ID)),
            key_rows=key_rows,
            key_hashes=key_hashes,
        )

    def _columns_of_one(self, row: Rows) -> Columns:
        """The same for one message, in Python's own numbers: most frames of single sends hold just one."""
        lengths, topic_id = self._lengths_of_one(), int(row["topic_id"][0])
        texts = bytes(self._data[ROW.itemsize : ROW.itemsize + sum(lengths[:3])])
        key_text = texts[lengths[0] + lengths[1] :]
        key_hashes = [
            hash_text(key, seed_of(topic_id, PURPOSE_KEY)) for key in key_text.split(b" ") if key_text
        ]
        return Columns(
            **{name: row[name] for name in _COLUMN_NAMES},
            size=np.array([sum(lengths) + ROW.itemsize], np.uint32),
            id_hash=np.array([hash_text(texts[: lengths[0]], seed_of(topic_id, PURPOSE_ID))], np.uint64),
            key_rows=np.zeros(len(key_hashes), np.int64),
            key_hashes=np.array(key_hashes, np.uint64),
        )

    def _heap(self) -> U8:
        return np.frombuffer(self._data, np.uint8, offset=self.count * ROW.itemsize)

    def _row_message(self, row: int) -> StoredMessage:
        assert self._rows is not None
        fixed = self._rows[row]
        lengths = [int(fixed[name]) for name in _LENGTHS]
        at = self.count * ROW.itemsize + int(self._ends[row]) - sum(lengths)
        texts: list[bytes] = []
        for length in lengths:
            texts.append(bytes(self._data[at : at + length]))
            at += length
        message_id, tag, keys, group, properties = (text.decode() for text in texts[:-1])
        numbers = (int(fixed[name]) for name in ("topic_id", "queue_id", "type", "level", "flags"))
        times = (int(fixed[name]) for name in ("born_at_ms", "stored_at_ms", "deliver_at_ms"))
        return _message_of(message_id, *numbers, tag, keys, group, *times, properties, texts[-1])

    # Arrow

    def _arrow_message(self, row: int) -> StoredMessage:
        assert self._batch is not None
        return _message_of(*(self._batch.column(name)[row].as_py() for name in _MESSAGE_FIELDS))


def arrow_batch(messages: Sequence[StoredMessage], queue_offsets: Sequence[int] | I64) -> pa.RecordBatch:
    """Messages as an Arrow batch of `SCHEMA`."""
    columns = [
        [m.id for m in messages],
        [m.topic_id for m in messages],
        [m.queue_id for m in messages],
        [int(m.type) for m in messages],
        [m.level for m in messages],
        [m.flags for m in messages],
        [m.born_at_ms for m in messages],
        [m.stored_at_ms for m in messages],
        [m.deliver_at_ms for m in messages],
        [int(offset) for offset in queue_offsets],
        [m.tag for m in messages],
        [" ".join(m.keys) for m in messages],
        [m.message_group for m in messages],
        [encode_properties(m.properties) for m in messages],
        [m.body for m in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name).to_numpy(zero_copy_only=True)


_MESSAGE_FIELDS = tuple(field.name for field in fields(StoredMessage))
_TYPES = {int(kind): kind for kind in MessageType}


def _message_of(*values: Any) -> StoredMessage:
    """A message from its stored values, in the order of its fields."""
    message_id, topic_id, queue_id, kind, level, flags, tag, keys, group, *rest = values
    born_ms, stored_ms, due_ms, properties, body = rest
    words = tuple(keys.split(" ")) if keys else ()
    named = json.loads(properties) if properties else {}
    numbers = (topic_id, queue_id, _TYPES[kind], level, flags)
    return StoredMessage(message_id, *numbers, tag, words, group, born_ms, stored_ms, due_ms, named, body)
