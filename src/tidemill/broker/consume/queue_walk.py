"""Messages of a queue, a few at a time: those at some offsets, then all of a range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from tidemill.core.model import StoredMessage
from tidemill.log.arrays import Rows
from tidemill.store.message_store import MessageStore

# Few enough that messages of the largest size do not fill the memory.
_READ_AHEAD = 16


def walk(
    store: MessageStore, queue: tuple[int, int], again: Sequence[int], fresh: range, limit: int
) -> Iterator[tuple[int, tuple[int, int, int], StoredMessage | None]]:
    """Each offset with when and how its message came (None: it has expired, or its bytes are damaged)."""
    ahead = min(_READ_AHEAD, limit)
    for offsets in (again, fresh):
        for start in range(0, len(offsets), max(1, ahead)):
            part = offsets[start : start + ahead]
            rows = _rows_at(store, queue, part)
            is_live = [not store.is_expired(place) for place in rows["place"].tolist()]
            messages = iter(store.messages(rows["place"][is_live].tolist()))
            came = rows[["released_at_ms", "via", "placements"]].tolist()
            for offset, arrival, has_message in zip(part, came, is_live, strict=True):
                yield offset, arrival, next(messages) if has_message else None


def _rows_at(store: MessageStore, queue: tuple[int, int], offsets: Sequence[int]) -> Rows:
    if all(later == earlier + 1 for earlier, later in pairwise(offsets)):
        return store.queues.read(queue, offsets[0], offsets[-1] + 1)
    rows: Rows = np.concatenate([store.queues.read(queue, at, at + 1) for at in offsets])
    return rows
