"""Messages that are overdue, found by looking through the entries.

Reads the store, a bounded stretch at a time. It serves three: the look at start-up for what was handed over
in an earlier life, the backlog of a topic that had more waiting than fits in memory, and the sweep for what
was forgotten (`sweeper.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.core.model import NEVER_ROLLED, NOT_COUNTED, Via
from tidemill.log.arrays import Rows
from tidemill.release.due_rows import due_rows, joined
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore

# Entries looked at in one go. Parts end at multiples of this, so that none spans two chunks of the table.
SCAN_ROWS = 1 << 18


@dataclass(slots=True)
class OverdueScan:
    """A walk through the entries for pending messages that were handed over in an earlier life.

    Those are due, or were: the clock may have been set back since. Their ready files may be gone.
    """

    next_seq: int
    end_seq: int
    handed_over_ms: int  # the pipeline has handed over nothing that is due at or after this time
    held_seq: int | None = None  # far entries from here on are not absorbed, because that is held

    @property
    def is_over(self) -> bool:
        return self.next_seq >= self.end_seq

    def next_part(self) -> tuple[int, int]:
        """The seqs `[first, end)` to look at next; they count as looked at."""
        first = self.next_seq
        self.next_seq = min(self.end_seq, (first // SCAN_ROWS + 1) * SCAN_ROWS)
        return first, max(first, self.next_seq)

    def some(self, store: MessageStore, now_ms: int) -> Rows:
        """One bounded look; the rows found."""
        first_seq, end_seq = self.next_part()
        until_ms = max(now_ms, self.handed_over_ms)
        return overdue_rows(store, first_seq, end_seq, until_ms, held_seq=self.held_seq)


def overdue_rows(
    store: MessageStore,
    first_seq: int,
    end_seq: int,
    until_ms: int,
    topic_id: int | None = None,
    fifo_below_ms: int | None = None,
    held_seq: int | None = None,
) -> Rows:
    """Pending messages of a range of seqs that are due by `until_ms`; of one topic, if one is given.

    FIFO messages due at or after `fifo_below_ms` are left out, and far ones from `held_seq` on.
    """
    with store.read():
        first_seq = max(first_seq, store.ledger.head_seq)
        if first_seq >= end_seq:
            return joined([])
        wanted = store.ledger.range_states(first_seq, end_seq) == State.PENDING
        entries = store.entries.read(first_seq, end_seq, wanted)
    # A row never changes, and what is settled meanwhile is found out when it is to be released.
    wanted &= entries["deliver_at_ms"] <= until_ms
    if topic_id is not None:
        wanted &= entries["topic_id"] == topic_id
    if fifo_below_ms is not None:
        wanted &= (entries["flags"] & FLAG_FIFO == 0) | (entries["deliver_at_ms"] < fifo_below_ms)
    if held_seq is not None:
        is_absorbed = np.arange(first_seq, end_seq) < held_seq
        wanted &= is_absorbed | (entries["flags"] & (FLAG_NEAR | FLAG_LEVEL) != 0)
    chosen = np.flatnonzero(wanted)
    # How often a message from the wheel was rolled is not known here.
    rows = due_rows(entries["deliver_at_ms"][chosen], first_seq + chosen, Via.EMBEDDED, NOT_COUNTED)
    for flag, via in ((FLAG_NEAR, Via.NEAR), (FLAG_LEVEL, Via.LEVEL)):
        is_flagged = entries["flags"][chosen] & flag != 0
        rows["via"][is_flagged], rows["placements"][is_flagged] = via, NEVER_ROLLED
    return joined([rows])


def earliest_overdue(
    store: MessageStore,
    topic_id: int,
    until_ms: int,
    fifo_below_ms: int,
    rows_max: int,
    held_seq: int | None = None,
) -> tuple[Rows, bool]:
    """The earliest `rows_max` pending messages of a topic due by `until_ms`; and whether those are all."""
    ledger = store.ledger
    kept, is_complete = joined([]), True
    first = ledger.head_seq
    while first < ledger.next_seq:
        end = min(ledger.next_seq, (first // SCAN_ROWS + 1) * SCAN_ROWS)
        found = overdue_rows(store, first, end, until_ms, topic_id, fifo_below_ms, held_seq)
        kept = joined([kept, found])
        if len(kept) > rows_max:
            kept, is_complete = kept[:rows_max], False
        first = end
    return kept, is_complete
