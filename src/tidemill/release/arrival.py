"""Rows of equal due time in the order in which their messages arrived. Reads the store."""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import Rows, picked
from tidemill.store.message_store import MessageStore
from tidemill.store.original_order import arrivals_of


def in_order_of_arrival(store: MessageStore, rows: Rows) -> Rows:
    """Equal due times keep their order of arrival, also where retention gave some a later seq."""
    with store.read():
        rows = picked(rows, store.ledger.pending_mask(rows["seq"]))
        entries = store.entries.take(rows["seq"])
        arrivals = arrivals_of(store.readable_section, rows["seq"], entries)
    return picked(rows, np.lexsort((arrivals, rows["deliver_at_ms"])))
