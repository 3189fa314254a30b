"""How often messages were rolled, as release records and ready files carry it.

Mostly nothing was rolled, and then one number says so for all. The record's `placements_kind` field:

    0   not counted (all that was written before there was a count)
    1   counted, and none was rolled
    2   an array of u16 follows: for each message its placements (core.model: rolls + 1, or 0 for not counted)

A record with the array has format 2, so that an older Tidemill refuses it; any other reads as it always did.

Pure. Little-endian.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.errors import NewerFormatError
from tidemill.core.model import NEVER_ROLLED, NOT_COUNTED
from tidemill.log.arrays import U16

PLACEMENTS_EACH = 2
_SAME_PLACEMENTS = {0: NOT_COUNTED, 1: NEVER_ROLLED}


def placements_kind_of(placements: U16) -> int:
    """What the `placements_kind` field says of these."""
    for placements_kind, value in _SAME_PLACEMENTS.items():
        if (placements == value).all():
            return placements_kind
    return PLACEMENTS_EACH


def check_placements_kind(placements_kind: int) -> None:
    """Raise `NewerFormatError` for an unknown value."""
    if placements_kind > PLACEMENTS_EACH:
        raise NewerFormatError(
            f"a record has placements of unknown kind {placements_kind}; use a newer Tidemill"
        )


def placements_of(placements_kind: int, count: int) -> U16:
    """The placements of messages whose record has no array."""
    return np.broadcast_to(np.uint16(_SAME_PLACEMENTS[placements_kind]), count)
