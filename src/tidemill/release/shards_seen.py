"""What the releaser knows of the shards in one step: how far they have come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Before which time every message that is due has been handed over; computed on request.
FifoSafe = Callable[[], int]


@dataclass(frozen=True, slots=True)
class ShardsSeen:
    """The result of one look at the shards' cursors.

    `fifo_safe` answers before which time they handed over everything, with the ready files that are there
    after the look. `have_moved`: since the look before, so that there may be new files. `unabsorbed`: how
    many entries the slowest shard has not read. `held_seq`: where absorbing is held, far entries from this
    seq on go only when the timer has handed them over, after a resume; None: it is not held.
    """

    fifo_safe: FifoSafe
    have_moved: bool
    unabsorbed: int = 0
    held_seq: int | None = None
