"""Which of many ids were stored within the last hour: the bulk side of de-duplication.

Looks all of them up at once; only hits are read back from the log, and of those only the id and the time.
Call under the writer lock, so that two equal sends at the same moment still make one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.core.model import NO_SEQ, NO_TIME_MS
from tidemill.log.arrays import I64, U64
from tidemill.store.find_index import PLACE_BIT
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore


def stored_repeats(
    store: MessageStore, hashes: U64, ids: Sequence[str], now_ms: int
) -> Iterator[tuple[int, int, int]]:
    """For each id that was stored within the hour: its index, seq (-1: not timed) and due time."""
    found_at, refs = store.indexes.find.find_many(hashes)
    places, seqs, due = _where(store, refs)
    there = (places >> np.uint64(16) >= np.uint64(store.log.head)) & (places > 0)
    for hit in np.flatnonzero(there).tolist():
        index = int(found_at[hit])
        message_id, stored_at_ms = store.identity(int(places[hit]))
        if message_id == ids[index] and now_ms - stored_at_ms < DEDUPLICATION_MS:
            yield index, int(seqs[hit]), int(due[hit])


def _where(store: MessageStore, refs: U64) -> tuple[U64, I64, I64]:
    """Place (0: nowhere any more), seq and due time of what each ref means."""
    ledger = store.indexes.ledger
    places = np.where(refs >= PLACE_BIT, refs & ~PLACE_BIT, np.uint64(0))
    seqs, due = np.full(len(refs), NO_SEQ, np.int64), np.full(len(refs), NO_TIME_MS, np.int64)
    timed = np.flatnonzero((refs >= np.uint64(ledger.head_seq)) & (refs < np.uint64(ledger.next_seq)))
    timed = timed[ledger.states(refs[timed].astype(np.int64)) != State.MOVED]
    seqs[timed] = refs[timed].astype(np.int64)
    rows = store.indexes.entries.take(seqs[timed])
    places[timed], due[timed] = rows["place"], rows["deliver_at_ms"]
    return places, seqs, due
