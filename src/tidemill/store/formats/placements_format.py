"""How often messages were rolled, as release records and ready files carry it.

Mostly nothing was rolled, and then one number says so for all. What stands in the record's `told` field:

    0   nobody counted (all that was written before there was a count)
    1   counted, and none was rolled
    2   an array of u16 follows: for each message its trips (core.model: rolls + 1, or 0 for not counted)

A record with the array has format 2, so that an older Tidemill refuses it; any other reads as it always did.

Pure. Little-endian.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.errors import NewerFormat
from tidemill.core.model import NEVER_ROLLED, NOT_COUNTED
from tidemill.log.arrays import U16

TOLD_EACH = 2
_TOLD = {0: NOT_COUNTED, 1: NEVER_ROLLED}


def told_of(trips: U16) -> int:
    """What the `told` field says of these."""
    for told, value in _TOLD.items():
        if (trips == value).all():
            return told
    return TOLD_EACH


def check_told(told: int) -> None:
    """Raise `NewerFormat` for a value that nobody has written yet."""
    if told > TOLD_EACH:
        raise NewerFormat(f"a record has placements of unknown kind {told}; use a newer Tidemill")


def trips_of(told: int, count: int) -> U16:
    """The trips of messages whose record has no array."""
    return np.broadcast_to(np.uint16(_TOLD[told]), count)
