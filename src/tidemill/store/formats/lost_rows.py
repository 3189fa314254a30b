"""The rows of derived tables that stand for what a gap of the log lost, without their checks.

Pure. The log writer, a replay and a repair make the same rows of the same gap. None of them leads anywhere:
an entry is of a settled seq, a queue row is expired (place 0).
"""

from __future__ import annotations

import numpy as np

from tidemill.core.model import NO_SEQ, NO_TIME_MS
from tidemill.log.arrays import Rows
from tidemill.store.formats.entry_format import ENTRY, FLAG_NEAR
from tidemill.store.formats.queue_format import QUEUE_ROW


def lost_entries(count: int) -> Rows:
    """Entries of lost seqs. They are near, so that no timer takes them up."""
    rows = np.zeros(count, ENTRY)
    rows["deliver_at_ms"] = NO_TIME_MS
    rows["flags"] = FLAG_NEAR
    return rows


def lost_queue_rows(count: int, stamp_ms: int) -> Rows:
    """Rows of lost queue offsets; their time lets a search by time pass them."""
    rows = np.zeros(count, QUEUE_ROW)
    rows["seq"] = NO_SEQ
    rows["released_at_ms"] = stamp_ms
    rows["deliver_at_ms"] = NO_TIME_MS
    return rows
