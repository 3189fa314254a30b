"""How often messages were rolled, as release records and ready files carry it.

Mostly nothing was rolled, and then one number says so for all. The record's `trips_kind` field:

    0   not counted (all that was written before there was a count)
    1   counted, and none was rolled
    2   an array of u16 follows: for each message its trips (core.model: rolls + 1, or 0 for not counted)

A record with the array has format 2, so that an older Tidemill refuses it; any other reads as it always did.

Pure. Little-endian.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.errors import NewerFormatError
from tidemill.core.model import NEVER_ROLLED, NOT_COUNTED
from tidemill.log.arrays import U16

TRIPS_EACH = 2
_SAME_TRIPS = {0: NOT_COUNTED, 1: NEVER_ROLLED}


def trips_kind_of(trips: U16) -> int:
    """What the `trips_kind` field says of these."""
    for trips_kind, value in _SAME_TRIPS.items():
        if (trips == value).all():
            return trips_kind
    return TRIPS_EACH


def check_trips_kind(trips_kind: int) -> None:
    """Raise `NewerFormatError` for an unknown value."""
    if trips_kind > TRIPS_EACH:
        raise NewerFormatError(f"a record has placements of unknown kind {trips_kind}; use a newer Tidemill")


def trips_of(trips_kind: int, count: int) -> U16:
    """The trips of messages whose record has no array."""
    return np.broadcast_to(np.uint16(_SAME_TRIPS[trips_kind]), count)
