"""The entries that a frame brings: made from the columns of its messages, without their checks.

Pure. The log writer, a replay and a repair make the same rows of the same frame.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.levels import LEVEL_COUNT_MAX
from tidemill.log.arrays import I64, Rows
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.message_format import Columns


def entry_rows(frame_offset: int, columns: Columns, timed: I64) -> Rows:
    """The entries of the timed rows of a section."""
    rows = np.zeros(len(timed), ENTRY)
    rows["place"] = timed + (frame_offset << 16)
    which: I64 | slice = timed if len(timed) < len(columns.deliver_at_ms) else slice(None)
    rows["deliver_at_ms"] = columns.deliver_at_ms[which]
    rows["stored_at_ms"] = columns.stored_at_ms[which]
    rows["id_hash"] = columns.id_hash[which]
    rows["size"] = columns.size[which]
    rows["topic_id"] = columns.topic_id[which]
    rows["queue_id"] = columns.queue_id[which]
    rows["flags"] = columns.flags[which]
    rows["level"] = np.minimum(columns.level[which], LEVEL_COUNT_MAX)  # older versions took more levels
    return rows
