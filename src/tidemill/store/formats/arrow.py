"""Writes messages in the Arrow encoding, which `message_format.py` describes and reads. No text is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.log.arrays import I64
from tidemill.store.formats.message_format import SCHEMA, arrow_columns, arrow_parts
from tidemill.store.formats.new_messages import NewMessages, Written
from tidemill.store.formats.texts import Texts


def encode_arrow(messages: NewMessages, queue_offsets: I64 | int, first_seq: int) -> Written:
    """The section of these messages, whose timed ones have the seqs from `first_seq` on."""
    columns: dict[str, Any] = {
        "id": messages.ids,
        "topic_id": messages.topic_ids,
        "queue_id": messages.queue_ids,
        "type": messages.types,
        "level": messages.levels,
        "flags": messages.flags,
        "born_at_ms": messages.born_at_ms,
        "stored_at_ms": messages.stored_at_ms,
        "deliver_at_ms": messages.deliver_at_ms,
        "queue_offset": queue_offsets,
        "tag": messages.tags,
        "keys": messages.keys,
        "message_group": messages.groups,
        "properties": messages.properties,
        "body": messages.bodies,
    }
    arrays = [_array(columns[field.name], field.type, messages.count) for field in SCHEMA]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    known = arrow_columns(batch, messages.id_hashes)
    has_levels = type(messages.levels) is not int or messages.levels > 0
    parts = arrow_parts(batch, first_seq)
    size = sum(map(len, parts))
    return Written(parts, size, messages.count, first_seq, known, messages.timed, has_levels)


def _array(column: I64 | int | Texts | None, kind: pa.DataType, count: int) -> pa.Array:
    if column is None:
        return empty_texts(count)
    if isinstance(column, int):
        return pa.array(np.full(count, column, kind.to_pandas_dtype()))
    return (
        pa.array(column.astype(kind.to_pandas_dtype(), copy=False))
        if isinstance(column, np.ndarray)
        else column
    )


def empty_texts(count: int) -> pa.Array:
    """A text column in which no row has any."""
    offsets = pa.py_buffer(np.zeros(count + 1, np.int32))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(b""))
