"""Which messages of a release take their bytes along, because those are about to leave the log.

Owns the choice and its bound: bytes of many messages are read at once, so a record takes only so many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.core.limits import MIB
from tidemill.core.model import StoredMessage
from tidemill.log.arrays import I64, Flags, Rows
from tidemill.store.message_store import MessageStore
from tidemill.store.releasable_since import could_go_ms

_ROWS_MAX = 1 << 12
_BYTES_MAX = 16 * MIB


@dataclass(frozen=True, slots=True)
class ReleaseBatch:
    """Rows that go into one record, with their entries."""

    rows: Rows
    entries: Rows
    since_ms: I64  # from when on each could have gone
    is_value: Flags
    messages: list[StoredMessage]  # of the rows where `is_value`


def release_batch(store: MessageStore, rows: Rows, now_ms: int) -> ReleaseBatch:
    """The rows, or fewer where the bytes that go along would be too many. Call under the writer lock."""
    entries = store.entries.take(rows["seq"])
    is_value = entries["place"] >> np.uint64(16) < store.value_below(now_ms)
    if not is_value.any():
        return ReleaseBatch(rows, entries, could_go_ms(store.log, entries), is_value, [])
    value_bytes = np.cumsum(np.where(is_value, entries["size"], 0), dtype=np.int64)
    fits = (value_bytes <= _BYTES_MAX) & (np.cumsum(is_value) <= _ROWS_MAX)
    count = max(1, int(fits.sum()))
    is_value = is_value[:count]
    read = store.messages(entries["place"][:count][is_value].tolist())
    messages = [message for message in read if message is not None]
    if len(messages) < len(read):  # what is damaged goes by reference: its bytes are not needed for that
        is_value[np.flatnonzero(is_value)] = [message is not None for message in read]
    entries = entries[:count]
    return ReleaseBatch(rows[:count], entries, could_go_ms(store.log, entries), is_value, messages)
