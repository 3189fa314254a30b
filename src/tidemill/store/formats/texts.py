"""Text columns of messages that are about to be written: a list of byte strings, or an Arrow array.

Requests come as lists, tables as Arrow. These few functions are all that the rest of the send path knows of
the difference. Pure. A column that would hold only empty texts is None elsewhere; none comes here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.log.arrays import I64, U8, U64, each_of
from tidemill.store.find.hashing import PURPOSE_KEY, hash_slices, hash_texts, seed_of, topic_seeds

Texts: TypeAlias = list[bytes] | Any  # or a `pa.Array`, which has no types

_KEY_SEPARATOR = ord(" ")
_NO_ROWS = np.empty(0, np.int64)
_NO_HASHES = np.empty(0, np.uint64)


def slices_of(array: Any) -> tuple[U8, I64, I64]:
    """The bytes of an Arrow string or binary array, and where each value starts and how long it is."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    first = int(ends[0])
    # Only the part in use, so that a slice of a large batch does not drag the whole batch along.
    return raw[first : int(ends[-1])], ends[:-1] - first, np.diff(ends)


def text_at(texts: Texts, row: int) -> bytes:
    """One text."""
    if isinstance(texts, list):
        return texts[row]
    value = texts[row].as_py()
    found: bytes = value.encode() if isinstance(value, str) else value
    return found


def texts_at(texts: Texts | None, rows: I64) -> Texts | None:
    """The texts of some rows."""
    if isinstance(texts, list):
        return [texts[row] for row in rows.tolist()]
    return None if texts is None else texts.take(pa.array(rows))


def some_rows(columns: Any, which: I64, whole: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass of columns for some of its rows; those in `whole` stay as they are."""
    taken: dict[str, Any] = {"count": len(which)}
    for field in fields(columns):
        column = getattr(columns, field.name)
        if field.name == "timed":
            is_timed = np.zeros(columns.count, np.bool_)
            is_timed[column] = True
            taken["timed"] = is_timed[which].nonzero()[0]
        elif field.name not in whole and not isinstance(column, int):
            taken[field.name] = column[which] if isinstance(column, np.ndarray) else texts_at(column, which)
    return taken


def hash_column(texts: Texts, seeds: U64 | int) -> U64:
    """The hash of each text, each with its own seed or all with one."""
    if isinstance(texts, list):
        return hash_texts(texts, seeds)
    data, starts, lengths = slices_of(texts)
    return hash_slices(data, starts, lengths, each_of(seeds, len(lengths)).astype(np.uint64))


def key_hashes(keys: Texts | None, topic_ids: I64 | U64 | int) -> tuple[I64, U64]:
    """The rows that have keys, once for each of their keys, and the hash of each key."""
    if keys is None:
        return _NO_ROWS, _NO_HASHES
    if not isinstance(keys, list):
        data, starts, lengths = slices_of(keys)
        return hash_key_slices(data, starts, lengths, each_of(topic_ids, len(lengths)))
    pairs = [(row, key) for row, text in enumerate(keys) if text for key in text.split(b" ")]
    if not pairs:
        return _NO_ROWS, _NO_HASHES
    rows = np.array([row for row, _ in pairs], np.int64)
    return rows, hash_texts([key for _, key in pairs], _key_seeds(topic_ids, rows))


def hash_key_slices(data: U8, starts: I64, lengths: I64, topic_ids: I64 | U64) -> tuple[I64, U64]:
    """The same for slices of one buffer."""
    rows = lengths.nonzero()[0]
    if not len(rows):
        return rows, _NO_HASHES
    seeds = topic_seeds(topic_ids[rows], PURPOSE_KEY)
    if not (data == _KEY_SEPARATOR).any():
        return rows, hash_slices(data, starts[rows], lengths[rows], seeds)
    spans = zip(starts[rows].tolist(), lengths[rows].tolist(), strict=True)
    texts = [bytes(data[start : start + length]).split(b" ") for start, length in spans]
    counts = np.fromiter(map(len, texts), np.int64, len(texts))
    every: Sequence[bytes] = [key for keys in texts for key in keys]
    return np.repeat(rows, counts), hash_texts(every, np.repeat(seeds, counts))


def _key_seeds(topic_ids: I64 | U64 | int, rows: I64) -> U64 | int:
    if isinstance(topic_ids, int):
        return seed_of(topic_ids, PURPOSE_KEY)
    return topic_seeds(topic_ids[rows], PURPOSE_KEY)
