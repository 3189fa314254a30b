"""What is pending, read through in order of seq, a bounded part at a time. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidemill.core.model import SEQ_MAX
from tidemill.log.arrays import I64, Rows
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore

_SCAN_ROWS = 1 << 18


def scan_pending(
    store: MessageStore,
    topic_id: int | None,
    from_ms: int,
    to_ms: int,
    from_seq: int = 0,
    to_seq: int = SEQ_MAX,
) -> Iterator[tuple[I64, Rows]]:
    """Seqs and entries of what is pending and due in `[from_ms, to_ms)`, of the seqs in `[from_seq, to_seq)`.

    Call under the writer lock, or be content with what was pending at some moment.
    """
    ledger = store.ledger
    first = max(from_seq, ledger.head_seq)
    while first < min(to_seq, ledger.next_seq):
        with store.read():
            first = max(first, ledger.head_seq)
            end = max(first, min(to_seq, ledger.next_seq, first + _SCAN_ROWS))
            wanted = ledger.range_states(first, end) == State.PENDING
            rows = store.entries.read(first, end, wanted)
        # A row never changes, so the lock is not needed for looking at it.
        wanted &= (rows["deliver_at_ms"] >= from_ms) & (rows["deliver_at_ms"] < to_ms)
        if topic_id is not None:
            wanted &= rows["topic_id"] == topic_id
        chosen = np.flatnonzero(wanted)
        if len(chosen):
            yield first + chosen, rows[chosen]
        first = end
