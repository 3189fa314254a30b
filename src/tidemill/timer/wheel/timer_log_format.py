"""The unit of the TimerLog: one pending timer, as RocketMQ's RIP-43 lays it out.

    offset  bytes  field
    0       4      size of the unit: 52
    4       8      prev_pos: position of the slot's unit before this one, -1 for none
    12      2      placements: how often it was placed; 0 where not counted (in RIP-43 the high half of magic)
    14      2      magic bits: 1 default, 2 roll, 4 delete
    16      8      enqueue time, Unix ms floored to the tick: the end tick of the step that wrote it
    24      4      delayed time: slot time - enqueue time, ms, signed
    28      8      offset of the message's frame in the commit log
    36      4      stored size of the message
    40      4      topic hash (we put the topic id)
    44      8      reserved (we put the seq)

The blank unit that closes a segment:

    0       4      bytes left in the segment
    4       8      zero
    12      4      0xCBD43194

Big-endian. Format 1.

A *position* is an absolute byte offset over all segments of equal size; units never straddle two. An
*index* counts units alone. With 1000-byte segments there are 18 units in each, so the unit at index 18
stands at position 1000, while index 17 stands at 884 and is followed by a blank at 936.

Invariants: prev_pos < own position; positions rise with indexes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tidemill.log.arrays import I64, Rows

UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("prev_pos", ">i8"),
        ("placements", ">u2"),
        ("magic", ">u2"),
        ("enqueue_ms", ">i8"),
        ("delayed_ms", ">i4"),
        ("offset", ">i8"),
        ("message_size", ">i4"),
        ("topic_hash", ">i4"),
        ("seq", ">i8"),
    ]
)
UNIT_BYTES = 52
assert UNIT.itemsize == UNIT_BYTES
PREV_POS_OFFSET = 4
# What is read of many units without the rest; placements and magic together.
COLUMNS = np.dtype(
    {
        "names": ["prev_pos", "state", "offset", "seq"],
        "formats": [">i8", ">u4", ">i8", ">i8"],
        "offsets": [PREV_POS_OFFSET, 12, 28, 44],
        "itemsize": UNIT_BYTES,
    }
)

MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGIC_BITS = MAGIC_DEFAULT | MAGIC_ROLL | MAGIC_DELETE

NO_POSITION = -1

BLANK_BYTES = 16
_BLANK = struct.Struct(">iqI")
_BLANK_MAGIC = 0xCBD43194
assert _BLANK.size == BLANK_BYTES

Units = Rows


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where units stand when a segment has `segment_bytes`."""

    segment_bytes: int

    @property
    def units_per_segment(self) -> int:
        return (self.segment_bytes - BLANK_BYTES) // UNIT_BYTES

    def index_at(self, position: int) -> int:
        segment, offset = divmod(position, self.segment_bytes)
        return segment * self.units_per_segment + offset // UNIT_BYTES

    def position_of(self, index: int) -> int:
        segment, row = divmod(index, self.units_per_segment)
        return segment * self.segment_bytes + row * UNIT_BYTES

    def indexes_at(self, positions: I64) -> I64:
        """Indexes of the units at `positions`; -1 stays -1."""
        segment = positions // self.segment_bytes
        indexes = segment * self.units_per_segment + (positions - segment * self.segment_bytes) // UNIT_BYTES
        return np.where(positions < 0, NO_POSITION, indexes)

    def positions_of(self, indexes: I64) -> I64:
        segment = indexes // self.units_per_segment
        return segment * self.segment_bytes + (indexes - segment * self.units_per_segment) * UNIT_BYTES

    def positions_from(self, first_index: int, count: int) -> I64:
        """Positions of `count` units in a row; no division per unit."""
        positions = np.arange(count, dtype=np.int64)
        positions *= UNIT_BYTES
        done = 0
        while done < count:
            segment, row = divmod(first_index + done, self.units_per_segment)
            part = min(count - done, self.units_per_segment - row)
            positions[done : done + part] += segment * self.segment_bytes + (row - done) * UNIT_BYTES
            done += part
        return positions


def encode_blank(segment_bytes: int) -> bytes:
    """The blank unit that closes a full segment."""
    used = SegmentLayout(segment_bytes).units_per_segment * UNIT_BYTES
    return _BLANK.pack(segment_bytes - used, 0, _BLANK_MAGIC)


def slot_ticks_of(units: Units, tick_ms: int) -> I64:
    """The tick of the slot each unit was put into."""
    slot_ms: I64 = units["enqueue_ms"].astype(np.int64) + units["delayed_ms"]
    return slot_ms // tick_ms


def whole_count(units: Units) -> int:
    """How many units at the front are whole: right size, the default bit, no unknown bit."""
    magic = units["magic"].astype(np.int64)
    whole = (units["size"] == UNIT_BYTES) & ((magic & MAGIC_DEFAULT) != 0) & ((magic & ~MAGIC_BITS) == 0)
    return len(units) if whole.all() else int(np.argmin(whole))
