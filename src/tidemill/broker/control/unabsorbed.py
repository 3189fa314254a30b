"""What the timer has not taken in yet: the earliest due time in it, and what is due of it.

Reads the store, a bounded part at a time. As a rule there is little; while absorbing is held it grows, and is
asked about again and again, so what was read once is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tidemill.core.limits import MINUTE_MS
from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR
from tidemill.store.message_store import MessageStore

NOTHING_MS = 1 << 62
_FOREVER_MS = 1 << 62


class EarliestUnabsorbed:
    """The earliest due time of pending far messages from a seq on. For one thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._first_seq = -1
        self._end_seq = 0  # seqs below it were looked at
        self._found = (NOTHING_MS, -1)  # due time, seq

    def due_ms(self, first_seq: int) -> int:
        """`NOTHING_MS` where there is none."""
        ledger = self._store.ledger
        with self._store.read():
            first_seq, end_seq = max(first_seq, ledger.head_seq), ledger.next_seq
            found_seq = self._found[1]
            is_known = first_seq == self._first_seq and (found_seq < 0 or ledger.is_pending(found_seq))
        if not is_known:
            self._first_seq = self._end_seq = first_seq
            self._found = (NOTHING_MS, -1)
        for seqs, rows in self._store.scan_pending(None, 0, _FOREVER_MS, self._end_seq, end_seq):
            far = np.flatnonzero(rows["flags"] & (FLAG_NEAR | FLAG_LEVEL) == 0)
            if len(far):
                first = far[np.argmin(rows["deliver_at_ms"][far])]
                self._found = min(self._found, (int(rows["deliver_at_ms"][first]), int(seqs[first])))
        self._end_seq = max(self._end_seq, end_seq)
        return self._found[0]


def due_unabsorbed(store: MessageStore, absorbed_ends: Sequence[int], until_ms: int) -> Counter[int]:
    """By topic id, how many pending far messages due by `until_ms` the shards have not absorbed.

    `absorbed_ends`: how far each shard has come, in order of the shards.
    """
    found: Counter[int] = Counter()
    # The due counts know at once when nothing at all is due, however much is not absorbed.
    if not store.due_counts.before(until_ms // MINUTE_MS + 1):
        return found
    ends = np.array(absorbed_ends)
    for seqs, rows in store.scan_pending(None, 0, until_ms + 1, int(ends.min())):
        is_left = rows["flags"] & (FLAG_NEAR | FLAG_LEVEL) == 0
        is_left &= seqs >= ends[seqs % len(ends)]
        ids, counts = np.unique(rows["topic_id"][is_left], return_counts=True)
        found.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
    return found
