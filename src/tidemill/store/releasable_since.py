"""Since when a message could have gone: the moment from which its lateness counts.

One rule for all figures of lateness: the later of its due time and the moment the broker could know of it. A
time in the past is known when the message is stored, or rescheduled, to it; that is no lateness. A
message that retention moved keeps the first of these moments alone, as does one whose frame is damaged: the
other is in that frame.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64, Rows
from tidemill.log.segments import SegmentedLog
from tidemill.store.formats.entry_format import FLAG_PAST


def could_go_ms(log: SegmentedLog, entries: Rows) -> I64:
    """Of each entry, none of which is cut, since when it could have been released. Under the writer lock."""
    since: I64 = np.maximum(entries["deliver_at_ms"], entries["stored_at_ms"])
    past = np.flatnonzero(entries["flags"] & FLAG_PAST)
    frame_offsets = entries["place"][past] >> np.uint64(16)
    for offset in np.unique(frame_offsets).tolist():
        inside = past[frame_offsets == offset]
        frame = log.intact_frame(offset)
        if frame is not None:
            since[inside] = np.maximum(since[inside], frame.stamp_ms)
    return since
