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

from typing import Any

import numpy as np
import numpy.typing as npt

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

Slots = npt.NDArray[Any]


def speaks_for(slots: Slots, ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of `slots` hold units for the tick beside them."""
    valid: npt.NDArray[np.bool_] = (slots["time"] == ticks) & (slots["num"] > 0)
    return valid
