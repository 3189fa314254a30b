"""What is due on the delay levels, for the releaser."""

from __future__ import annotations

from tidemill.core.model import NEVER_ROLLED, Via
from tidemill.log.arrays import Rows
from tidemill.release.due_rows import NO_ROWS, due_rows, in_order
from tidemill.store.message_store import MessageStore


def take_due_levels(store: MessageStore, now_ms: int, rows_max: int) -> Rows:
    """What is due in all level queues, in one go."""
    levels = store.levels
    next_due_ms = levels.next_due_ms
    if next_due_ms is None or next_due_ms > now_ms:
        return NO_ROWS
    with store.read():
        dues_ms, seqs = levels.take_due(now_ms, rows_max)
    return in_order(due_rows(dues_ms, seqs, Via.LEVEL, NEVER_ROLLED))
