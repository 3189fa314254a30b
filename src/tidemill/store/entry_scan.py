"""Entries made and looked through: the rows of a frame, and the pending ones that carry a flag.

Pure over the tables it is given; asked under the writer lock.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64, Rows
from tidemill.log.row_table import RowTable
from tidemill.store.entry_format import ENTRY
from tidemill.store.ledger import Ledger, State
from tidemill.store.message_format import Columns

# How many entries one pass over the table looks at.
SCAN_ROWS = 1 << 20


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
    rows["level"] = columns.level[which]
    return rows


def pending_with(flag: int, entries: RowTable, ledger: Ledger, from_seq: int) -> I64:
    """Seqs at or above `from_seq` that are pending and whose entry has the flag."""
    found: list[I64] = []
    first = max(from_seq, ledger.head_seq)
    while first < ledger.next_seq:
        end = min(ledger.next_seq, (first // SCAN_ROWS + 1) * SCAN_ROWS)
        found.append(pending_in(flag, entries, ledger, first, end))
        first = end
    return np.concatenate(found) if found else np.empty(0, np.int64)


def pending_in(flag: int, entries: RowTable, ledger: Ledger, first: int, end: int) -> I64:
    """Seqs in `[first, end)` that are pending and whose entry has the flag."""
    if first >= end:
        return np.empty(0, np.int64)
    is_flagged = entries.read(first, end)["flags"] & flag != 0
    pending = ledger.range_states(first, end) == State.PENDING
    return first + np.flatnonzero(is_flagged & pending)
