"""Entries looked through for the pending ones that carry a flag.

Pure over the tables it is given; asked under the writer lock.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64
from tidemill.store.entries import EntryTable
from tidemill.store.ledger import Ledger, State

# How many entries one pass over the table looks at.
SCAN_ROWS = 1 << 20


def pending_with(flag: int, entries: EntryTable, ledger: Ledger, from_seq: int) -> I64:
    """Seqs at or above `from_seq` that are pending and whose entry has the flag."""
    found: list[I64] = []
    first = max(from_seq, ledger.head_seq)
    while first < ledger.next_seq:
        end = min(ledger.next_seq, (first // SCAN_ROWS + 1) * SCAN_ROWS)
        found.append(pending_in(flag, entries, ledger, first, end))
        first = end
    return np.concatenate(found) if found else np.empty(0, np.int64)


def pending_in(flag: int, entries: EntryTable, ledger: Ledger, first: int, end: int) -> I64:
    """Seqs in `[first, end)` that are pending and whose entry has the flag."""
    if first >= end:
        return np.empty(0, np.int64)
    pending = ledger.range_states(first, end) == State.PENDING
    is_flagged = entries.read(first, end, pending)["flags"] & flag != 0
    return first + np.flatnonzero(is_flagged & pending)
