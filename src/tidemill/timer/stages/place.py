"""Stage two: which slot a timer goes into, or that it goes out at once.

Measured from the *open tick*, the first slot that still takes units when the step has ended:

    due slot <  open           already due: goes out in this step
    due slot <  open + window  into its own slot
    otherwise                  into a roll slot, from where it is placed again when its time comes

With window 8, open tick 100: due slot 99 goes out, 100 to 107 are taken as they are, and from 108 on a
timer rolls through one of the slots 106 and 107.

Invariants: a slot lies in [open, open + window) and never after the due slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.arrays import I64, Flags

# Neighbours by seq share a roll slot, so that their units stay contiguous and slot writes stay few.
_ROLL_GROUP_BITS = 4


@dataclass(frozen=True, slots=True)
class Placement:
    """The slot of each timer, and which of them roll."""

    slot_ticks: I64
    rolls: Flags


def is_due(deliver_at_ms: I64, open_tick: int, tick_ms: int) -> Flags:
    """Which timers fall into a slot that takes no more units."""
    return deliver_at_ms < open_tick * tick_ms


def place(deliver_at_ms: I64, seqs: I64, open_tick: int, tick_ms: int, roll_window_slots: int) -> Placement:
    """Slots for timers of which none is due."""
    slot_ticks = deliver_at_ms // tick_ms
    rolls = slot_ticks >= open_tick + roll_window_slots
    if rolls.any():
        # The last quarter of the window, so that a timer of many years is rewritten seldom, and spread by
        # seq over that quarter, so that a bulk load does not come back in one tick.
        spread = max(1, roll_window_slots // 4)
        back = (seqs[rolls] >> _ROLL_GROUP_BITS) % spread
        slot_ticks[rolls] = open_tick + roll_window_slots - 1 - back
    return Placement(slot_ticks, rolls)
