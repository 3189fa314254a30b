"""Rows that wait for their time: (deliver-at, seq, via, placements), and how they are ordered and joined.

The order everywhere is (deliver-at, seq): equal due times keep their order of arrival. Owns also which of the
messages of a release take their bytes along, because those are about to leave the log, and the bound of that:
bytes of many messages are read at once, so a record takes only so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.core.limits import MIB
from tidemill.core.model import NEVER_ROLLED, StoredMessage, Via
from tidemill.log.arrays import I64, U16, Flags, Rows, picked
from tidemill.store.message_store import MessageStore
from tidemill.store.original_order import arrivals_of
from tidemill.store.releasable_since import could_go_ms

DUE_ROW = np.dtype([("deliver_at_ms", "<i8"), ("seq", "<i8"), ("via", "u1"), ("placements", "<u2")])

NO_ROWS: Rows = np.empty(0, DUE_ROW)


def due_rows(deliver_at_ms: I64, seqs: I64, via: int, placements: int | U16) -> Rows:
    rows = np.empty(len(seqs), DUE_ROW)
    rows["deliver_at_ms"] = deliver_at_ms
    rows["seq"] = seqs
    rows["via"] = via
    rows["placements"] = placements
    return rows


def in_order(rows: Rows) -> Rows:
    """Sorted by (deliver-at, seq)."""
    due, seqs = rows["deliver_at_ms"], rows["seq"]
    if len(rows) < 2 or _is_sorted(due, seqs):
        return rows
    return picked(rows, np.lexsort((seqs, due)))


def seqs_between(rows: Rows, from_ms: int, until_ms: int) -> I64:
    """Seqs of the rows due in `[from, until]`; the rows must be in order."""
    start = np.searchsorted(rows["deliver_at_ms"], from_ms, "left")
    stop = np.searchsorted(rows["deliver_at_ms"], until_ms, "right")
    seqs: I64 = rows["seq"][start:stop].astype(np.int64)
    return seqs


def _is_sorted(due: I64, seqs: I64) -> bool:
    later = due[1:] > due[:-1]
    return bool((later | ((due[1:] == due[:-1]) & (seqs[1:] >= seqs[:-1]))).all())


def joined(parts: Sequence[Rows]) -> Rows:
    """All parts as one, in order."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return NO_ROWS
    return in_order(filled[0] if len(filled) == 1 else np.concatenate(filled))


def without_repeats(rows: Rows) -> Rows:
    """Without second copies of a row; the rows must be in order and each seq have one due time."""
    if len(rows) < 2:
        return rows
    is_repeat = rows["seq"][1:] == rows["seq"][:-1]
    return rows if not is_repeat.any() else rows[np.r_[True, ~is_repeat]]


def distinct(rows: Rows) -> Rows:
    """Without second copies of a seq; the rows must be in order."""
    if len(rows) < 2:
        return rows
    order = np.argsort(rows["seq"], kind="stable")
    is_first = np.ones(len(rows), np.bool_)
    sorted_seqs = rows["seq"][order]
    is_first[order[1:]] = sorted_seqs[1:] != sorted_seqs[:-1]
    return rows if is_first.all() else picked(rows, is_first)


def waited_for(rows: Rows, since_ms: I64, now_ms: int) -> Rows:
    """The rows, each with the time since when it could have gone in place of its due time. Never later than
    now, also if the clock was set back."""
    since = np.minimum(since_ms, now_ms)
    if not (since > rows["deliver_at_ms"]).any():
        return rows
    waited = rows.copy()
    waited["deliver_at_ms"] = np.maximum(rows["deliver_at_ms"], since)
    return waited


def in_order_of_arrival(store: MessageStore, rows: Rows) -> Rows:
    """Equal due times keep their order of arrival, also where retention gave some a later seq."""
    with store.read():
        rows = picked(rows, store.ledger.pending_mask(rows["seq"]))
        entries = store.entries.take(rows["seq"])
        arrivals = arrivals_of(store.readable_section, rows["seq"], entries)
    return picked(rows, np.lexsort((arrivals, rows["deliver_at_ms"])))


def take_due_levels(store: MessageStore, now_ms: int, rows_max: int) -> Rows:
    """What is due in all level queues, in one go."""
    levels = store.levels
    next_due_ms = levels.next_due_ms
    if next_due_ms is None or next_due_ms > now_ms:
        return NO_ROWS
    with store.read():
        dues_ms, seqs = levels.take_due(now_ms, rows_max)
    return in_order(due_rows(dues_ms, seqs, Via.LEVEL, NEVER_ROLLED))


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
