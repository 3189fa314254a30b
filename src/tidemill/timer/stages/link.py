"""Stage three: timers with their slots become TimerLog units and new slot rows.

Units are grouped by slot. Inside a group each unit points back at the one before it; the first points at
what the slot held, or at nothing. Two groups, slot 7 (held up to position 0) and slot 9 (new), appended
at index 10 of a log without segment ends:

    index     10   11   12   13
    slot       7    7    9    9
    prev_pos   0  520   -1  624

Invariant: the order inside a group is the order of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.log.arrays import I64
from tidemill.timer.stages.admit import Batch
from tidemill.timer.stages.order import order_by
from tidemill.timer.stages.place import Placement
from tidemill.timer.wheel.timer_log_format import (
    MAGIC_DEFAULT,
    MAGIC_ROLL,
    NO_POSITION,
    UNIT,
    UNIT_BYTES,
    SegmentLayout,
    Units,
)
from tidemill.timer.wheel.wheel_format import SLOT, SLOT_COUNT_MAX, Slots, speaks_for


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in slot order: `order` says which input row comes when, group `i` begins at `starts[i]`."""

    order: I64
    slot_ticks: I64
    starts: I64
    counts: I64


def group_by_slot(slot_ticks: I64) -> Groups:
    """Group rows by slot, keeping their order inside each slot."""
    count = len(slot_ticks)
    if not count:
        none = np.empty(0, np.int64)
        return Groups(none, none, none, none)
    order, ticks = order_by(slot_ticks)
    starts = np.concatenate(([0], np.flatnonzero(ticks[1:] != ticks[:-1]) + 1)).astype(np.int64)
    return Groups(order, ticks[starts], starts, np.diff(starts, append=count))


def link(
    groups: Groups,
    batch: Batch,
    placement: Placement,
    held: Slots,
    first_index: int,
    open_tick: int,
    tick_ms: int,
    layout: SegmentLayout,
) -> tuple[Units, Slots]:
    """Units for the TimerLog from `first_index` on, and the rows of the slots they belong to.

    `held` are the rows the wheel has for `groups.slot_ticks` now.
    """
    count = len(groups.order)
    positions = layout.positions_from(first_index, count)
    is_held = speaks_for(held, groups.slot_ticks)
    prev_pos = np.empty(count, np.int64)
    prev_pos[1:] = positions[:-1]
    prev_pos[groups.starts] = np.where(is_held, held["last_pos"], NO_POSITION)

    units = np.empty(count, UNIT)
    units["size"] = UNIT_BYTES
    units["prev_pos"] = prev_pos
    units["placements"] = batch.placements[groups.order]
    units["magic"] = MAGIC_DEFAULT
    if placement.rolls.any():
        units["magic"][placement.rolls[groups.order]] = MAGIC_DEFAULT | MAGIC_ROLL
    units["enqueue_ms"] = open_tick * tick_ms
    units["delayed_ms"] = np.repeat((groups.slot_ticks - open_tick) * tick_ms, groups.counts)
    units["offset"] = batch.entries["place"][groups.order] >> 16
    units["message_size"] = batch.entries["size"][groups.order]
    units["topic_hash"] = batch.entries["topic_id"][groups.order]
    units["seq"] = batch.seqs[groups.order]

    slots = np.zeros(len(groups.starts), SLOT)
    slots["time"] = groups.slot_ticks
    slots["first_pos"] = np.where(is_held, held["first_pos"], positions[groups.starts])
    slots["last_pos"] = positions[groups.starts + groups.counts - 1]
    present = np.where(is_held, held["num"].astype(np.int64), 0)
    slots["num"] = np.minimum(present + groups.counts, SLOT_COUNT_MAX)
    return units, slots
