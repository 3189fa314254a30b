"""The cursor: how far one shard has come, durably. A step starts from it and ends by writing it.

    offset  bytes  field
    0       8      epoch of the step that wrote it
    8       8      step, rising
    16      8      seq: every far entry below it is absorbed
    24      8      tick: every slot below it is drained
    32      8      next due tick: no unit is in a slot below it; -1 when there is no unit at all
    40      8      resume position: the slot `tick` is drained down to here; -1 when it was not begun
    48      8      TimerLog end: units from this position on do not count
    56      8      wheel synced: slots of units below this position survive a power cut
    64      8      first TimerLog segment that is kept
    72      4      number of kept segments
    76      4      zero
    80      8 n    for each kept segment the highest slot tick in it

Little-endian. Format 1. Kept in two generations by `log/checkpoint.py`, which adds the checksum.

Invariants: next due tick >= tick; wheel synced <= TimerLog end; while a slot is being drained in parts,
the next due tick is that slot.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tidemill.core.errors import CorruptionError

CURSOR_FORMAT = 1
CURSOR_NAME = "cursor"

_FIXED = struct.Struct("<QQqqqqqqqI4x")
assert _FIXED.size == 80

_NONE = -1
FAR_FUTURE_TICK = 1 << 62


@dataclass(frozen=True, slots=True)
class StoreMark:
    """What a timer store needs to find its durable state again."""

    log_end: int = 0
    wheel_synced: int = 0
    first_segment: int = 0
    segment_ticks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cursor:
    epoch: int = 0
    step: int = 0
    seq: int = 0
    tick: int = 0
    next_due_tick: int | None = None
    resume_position: int = _NONE
    mark: StoreMark = StoreMark()

    @property
    def is_inside_slot(self) -> bool:
        """True when the slot `tick` was so full that only a part of it has been handed over."""
        return self.resume_position >= 0

    @property
    def open_tick(self) -> int:
        """The first slot that still takes units: a slot once begun takes no more."""
        return self.tick + self.is_inside_slot

    @property
    def clear_tick(self) -> int:
        """No absorbed message below this tick is waiting, even where the wheel stood still."""
        return FAR_FUTURE_TICK if self.next_due_tick is None else self.next_due_tick


def encode_cursor(cursor: Cursor) -> bytes:
    mark = cursor.mark
    fixed = _FIXED.pack(
        cursor.epoch,
        cursor.step,
        cursor.seq,
        cursor.tick,
        _NONE if cursor.next_due_tick is None else cursor.next_due_tick,
        cursor.resume_position,
        mark.log_end,
        mark.wheel_synced,
        mark.first_segment,
        len(mark.segment_ticks),
    )
    return fixed + struct.pack(f"<{len(mark.segment_ticks)}q", *mark.segment_ticks)


def decode_cursor(content: bytes) -> Cursor:
    """The cursor in a checkpoint's content; raises `CorruptionError` if it is too short."""
    if len(content) < _FIXED.size:
        raise CorruptionError("a timer cursor is too short; delete the timer directory to rebuild it")
    epoch, step, seq, tick, due, resume, log_end, synced, first, count = _FIXED.unpack_from(content)
    if len(content) != _FIXED.size + 8 * count:
        raise CorruptionError("a timer cursor has a wrong length; delete the timer directory to rebuild it")
    ticks = struct.unpack_from(f"<{count}q", content, _FIXED.size)
    mark = StoreMark(log_end, synced, first, ticks)
    return Cursor(epoch, step, seq, tick, None if due == _NONE else due, resume, mark)
