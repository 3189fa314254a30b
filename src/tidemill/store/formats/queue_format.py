"""The queue row: one for each message in a topic's queue, its index is the queue offset.

    offset  bytes  field
    0       8      place: commit-log frame offset << 16 | row in the frame
    8       8      seq of a timed message, -1 for any other
    16      8      released-at, Unix ms: when it came into the queue
    24      8      deliver-at, Unix ms, -1 for a message that was not timed
    32      1      via: who handed it over (core.model.Via)
    33      1      zero
    34      2      placements: how often it was rolled, plus 1; 0 where not counted (or it was not timed)
    36      4      check over the row, its topic, queue and offset (`row_check.py`)

Little-endian. Format 2; format 1 had no check. Derived: never the only copy of anything.
"""

from __future__ import annotations

import numpy as np

QUEUE_ROW = np.dtype(
    [
        ("place", "<u8"),
        ("seq", "<i8"),
        ("released_at_ms", "<i8"),
        ("deliver_at_ms", "<i8"),
        ("via", "u1"),
        ("zero_1", "V1"),
        ("placements", "<u2"),
        ("check", "<u4"),
    ]
)
assert QUEUE_ROW.itemsize == 40
