"""The slot of the TimerWheel: where the chain of units for one tick begins and ends.

    offset  bytes  field
    0       8      time: the tick this slot holds now (Unix ms / tick length)
    8       8      first_pos: TimerLog position of the chain's oldest unit
    16      8      last_pos: TimerLog position of the chain's newest unit; the walk begins here
    24      4      num: how many units, a hint
    28      4      magic: zero

Big-endian. Format 1. The slot for tick `t` is number `t mod slots`.

Invariant: a slot speaks for tick `t` only when its time equals `t` and num > 0; draining clears
nothing, the next lap overwrites. A file of zeros is therefore an empty wheel.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64, Flags, Rows

SLOT = np.dtype(
    [
        ("time", ">i8"),
        ("first_pos", ">i8"),
        ("last_pos", ">i8"),
        ("num", ">i4"),
        ("magic", ">i4"),
    ]
)
SLOT_BYTES = 32
assert SLOT.itemsize == SLOT_BYTES

SLOT_COUNT_MAX = (1 << 31) - 1

Slots = Rows


def speaks_for(slots: Slots, ticks: I64) -> Flags:
    """Which of `slots` hold units for the tick beside them."""
    valid: Flags = (slots["time"] == ticks) & (slots["num"] > 0)
    return valid
