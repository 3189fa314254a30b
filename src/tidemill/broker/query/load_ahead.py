"""What is to come in the next hour: its fullest minute, and how full the wheel's slots are.

Computed on request. The cost is bounded by the hour: sixty minutes of each topic's due counts, and
the slots of one hour, a few megabytes at the finest tick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.broker.query.wheel_picture import WheelPictures
from tidemill.core.limits import MINUTE_MS
from tidemill.store.message_store import MessageStore

HORIZON_MS = 60 * MINUTE_MS
# Slots are grouped by how many messages they hold: from each number up to below the next.
FILLS = (0, 1, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class LoadAhead:
    """`slots[i]` is how many slots of the next hour hold at least `FILLS[i]` and fewer than the next."""

    peak: int  # messages that fall due in the fullest minute
    peak_at_ms: int | None
    fullest: int  # messages in the fullest slot
    slots: list[int]  # empty where the timer store has none


def load_ahead(store: MessageStore, wheel: WheelPictures, now_ms: int) -> LoadAhead:
    """The load of the hour that begins with the minute under way."""
    first = now_ms // MINUTE_MS
    with store.read():
        minutes = store.due_counts.minutes(None, first, first + HORIZON_MS // MINUTE_MS)
    fullest_minute = max(minutes, key=minutes.__getitem__, default=None)
    counts = wheel.slots_until(now_ms + HORIZON_MS)
    places = np.searchsorted(FILLS, counts, "right") - 1
    return LoadAhead(
        peak=0 if fullest_minute is None else minutes[fullest_minute],
        peak_at_ms=None if fullest_minute is None else fullest_minute * MINUTE_MS,
        fullest=int(counts.max(initial=0)),
        slots=np.bincount(places, minlength=len(FILLS)).tolist() if len(counts) else [],
    )
