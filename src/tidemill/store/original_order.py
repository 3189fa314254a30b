"""The order in which messages arrived, also of those that retention has moved to the tail since.

A message's seq is its place in the order of arrival, until retention moves it: then it gets a new seq and
keeps its due time, and the frame that moved it says under which seq it came (in the `queue_offset` of its
row, which nothing timed has use for otherwise). A reschedule is an arrival of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidemill.log.arrays import I64, Rows
from tidemill.store.formats.entry_format import FLAG_MOVED
from tidemill.store.formats.message_format import Section


def arrivals_of(section_at: Callable[[int], Section | None], seqs: I64, entries: Rows) -> I64:
    """The seq under which each message first came; `section_at` reads the messages of a frame.

    Where the frame is damaged (None) that is not known: there it is the message's own seq.

    Call under the writer lock; none of them may be cut.
    """
    arrived = seqs.astype(np.int64)
    moved = np.flatnonzero(entries["flags"] & FLAG_MOVED)
    places = entries["place"][moved]
    frame_offsets, rows = places >> np.uint64(16), (places & np.uint64(0xFFFF)).astype(np.int64)
    for offset in np.unique(frame_offsets).tolist():
        section = section_at(offset)
        if section is None:
            continue
        inside = frame_offsets == offset
        arrived[moved[inside]] = arrival_named(section.queue_offsets(rows[inside]))
    return arrived


def arrival_named(queue_offsets: I64) -> I64:
    """The arrivals that these fields of moved rows name."""
    return -2 - queue_offsets


def named_arrival(arrivals: I64) -> I64:
    """What the `queue_offset` of a moved row holds; below -1, so that it is taken for no offset."""
    return -2 - arrivals
