"""Writes messages in the row encoding, which `message_format.py` describes and reads: no loop per message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from tidemill.core.model import StoredMessage
from tidemill.log.arrays import I64, U64, Rows, each_of
from tidemill.store.formats.message_format import ROW, ROW_STRUCT, Columns, rows_header
from tidemill.store.formats.new_messages import NewMessages, Written, new_messages
from tidemill.store.formats.texts import key_hashes

_ROW_NAMES: tuple[str, ...] = ROW.names or ()


def encode_rows(messages: NewMessages, queue_offsets: I64 | int, first_seq: int) -> Written:
    """The section of these messages, whose timed ones have the seqs from `first_seq` on."""
    texts = {
        "id_bytes": messages.ids,
        "tag_bytes": messages.tags,
        "keys_bytes": messages.keys,
        "group_bytes": messages.groups,
        "properties_bytes": messages.properties,
        "body_bytes": messages.bodies,
    }
    given = [column for column in texts.values() if column is not None]
    lengths = {name: _lengths(column) for name, column in texts.items() if column is not None}
    rows = _filled_rows(
        messages.count,
        stored_at_ms=messages.stored_at_ms,
        born_at_ms=messages.born_at_ms,
        deliver_at_ms=messages.deliver_at_ms,
        queue_offset=queue_offsets,
        topic_id=messages.topic_ids,
        queue_id=messages.queue_ids,
        type=messages.types,
        level=messages.levels,
        flags=messages.flags,
        **lengths,
    )
    heap = chain.from_iterable(zip(*given, strict=True))
    data = b"".join((rows_header(messages.count, first_seq), rows.tobytes(), *heap))
    columns = _columns(
        rows,
        ROW.itemsize + sum(lengths.values()),
        messages.id_hashes,
        *key_hashes(messages.keys, messages.topic_ids),
    )
    has_levels = type(messages.levels) is not int or messages.levels > 0
    return Written([data], len(data), messages.count, first_seq, columns, messages.timed, has_levels)


def encode_messages(messages: Sequence[StoredMessage], queue_offsets: Sequence[int], first_seq: int) -> bytes:
    """The section of messages that are there as such."""
    written = encode_rows(new_messages(messages), np.array(queue_offsets, np.int64), first_seq)
    return bytes(written.parts[0])


def _columns(rows: Rows, size: I64 | int, id_hashes: U64, key_rows: I64, hashes: U64) -> Columns:
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
        id_hash=id_hashes,
        key_rows=key_rows,
        key_hashes=hashes,
    )


def _lengths(texts: Sequence[bytes]) -> I64 | int:
    """How long each is, or, where that is the same, how long all are."""
    lengths = list(map(len, texts))
    first = lengths[0] if lengths else 0
    return first if lengths.count(first) == len(lengths) else np.array(lengths, np.int64)


def _filled_rows(count: int, **columns: Any) -> Rows:
    """So many rows with these columns, each an array, or the one number that all have; the rest is zero."""
    same = [value if type(value := columns.get(name, 0)) is int else 0 for name in _ROW_NAMES]
    rows: Rows = np.frombuffer(bytearray(ROW_STRUCT.pack(*same) * count), ROW)
    for name, value in columns.items():
        if type(value) is not int:
            rows[name] = value
    return rows
