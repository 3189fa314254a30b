"""The entry: one fixed-width row for each timed message, its index is the message's `seq`.

    offset  bytes  field
    0       8      place: commit-log frame offset << 16 | row in the frame
    8       8      deliver-at, Unix ms
    16      8      stored-at, Unix ms, of the first time the message was stored
    24      8      hash of topic + id
    32      4      stored size in bytes
    36      4      topic id
    40      2      queue id
    42      1      flags
    43      1      level (0: none)
    44      4      check over the row and its seq (`row_check.py`)

Little-endian. Format 2; format 1 had no check. Old rows are never given one as they are found: an index of
format 1 is derived again from the log.

Invariant: places rise with seqs, because the frame that makes a seq carries its bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ENTRY_FORMAT = 2

ENTRY = np.dtype(
    [
        ("place", "<u8"),
        ("deliver_at_ms", "<i8"),
        ("stored_at_ms", "<i8"),
        ("id_hash", "<u8"),
        ("size", "<u4"),
        ("topic_id", "<u4"),
        ("queue_id", "<u2"),
        ("flags", "u1"),
        ("level", "u1"),
        ("check", "<u4"),
    ]
)
assert ENTRY.itemsize == 48

# Due so soon when stored that it goes straight to the releaser; the pipeline skips it.
FLAG_NEAR = 1
# Released by its delay level's queue; the pipeline skips it.
FLAG_LEVEL = 2
# Ordered within its message group: goes only when every shard has passed its due time.
FLAG_FIFO = 4
# Moved to the tail by retention: its frame, not its seq, says when it arrived (`original_order.py`).
FLAG_MOVED = 8
# Rescheduled to a time in the past: its frame says when; its lateness counts from then
# (`releasable_since.py`).
FLAG_PAST = 16

Entries = npt.NDArray[Any]


def place_of(frame_offset: int, row: int) -> int:
    return frame_offset << 16 | row


def frame_offset_of(place: int) -> int:
    return place >> 16


def row_of(place: int) -> int:
    return place & 0xFFFF
