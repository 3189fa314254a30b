"""What the RocksDB timer store keeps: one key for each timer, and one note.

The key, big-endian, so that keys sort by due time:

    offset  bytes  field
    0       8      due: deliver-at, Unix ms
    8       4      topic id
    12      8      hash of topic + id
    20      8      seq

It has no value: the entry of `seq` says everything else. The note:

    offset  bytes  field
    0       80     the cursor, as in its file (`cursor.py`), without segments
    80      28     the last key handed over, while a slot is drained in parts; zeros otherwise

Format 1. A key follows from the entry alone, so a timer absorbed twice is there once.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.log.arrays import Rows, picked
from tidemill.timer.cursor import Cursor, decode_cursor, encode_cursor
from tidemill.timer.stages.admit import Batch
from tidemill.timer.stages.order import order_by

TIMER_KEY = np.dtype([("due_ms", ">u8"), ("topic_id", ">u4"), ("id_hash", ">u8"), ("seq", ">u8")])
KEY_BYTES = TIMER_KEY.itemsize
assert KEY_BYTES == 28

NO_KEY = bytes(KEY_BYTES)

TimerKeys = Rows


def timer_keys(batch: Batch) -> TimerKeys:
    """The keys of a batch, by due time."""
    keys = np.empty(len(batch), TIMER_KEY)
    keys["due_ms"] = batch.entries["deliver_at_ms"]
    keys["topic_id"] = batch.entries["topic_id"]
    keys["id_hash"] = batch.entries["id_hash"]
    keys["seq"] = batch.seqs
    # Neighbours in time are neighbours in RocksDB: put in order, each finds its place three times faster.
    order, _ = order_by(batch.entries["deliver_at_ms"].astype(np.int64))
    return picked(keys, order)


def first_key_at(due_ms: int) -> bytes:
    """What no key due at or after `due_ms` lies before, and every other key does."""
    return due_ms.to_bytes(8, "big")


def key_after(key: bytes) -> bytes:
    """What only keys behind `key` reach."""
    return key + b"\0"


def encode_note(cursor: Cursor, resume_key: bytes) -> bytes:
    assert len(resume_key) == KEY_BYTES
    return encode_cursor(cursor) + resume_key


def decode_note(note: bytes) -> tuple[Cursor, bytes]:
    """Cursor and resume key; raises `CorruptionError` if the note is too short."""
    if len(note) <= KEY_BYTES:
        raise CorruptionError("the note of the RocksDB timer store is too short; delete the timer directory")
    return decode_cursor(note[:-KEY_BYTES]), note[-KEY_BYTES:]
