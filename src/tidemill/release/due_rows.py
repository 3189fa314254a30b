"""Rows that wait for their time: (deliver-at, seq, via, trips), and how they are ordered and joined.

Pure. The order everywhere is (deliver-at, seq): equal due times keep their order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.log.arrays import I64, U16, Rows, picked

DUE_ROW = np.dtype([("deliver_at_ms", "<i8"), ("seq", "<i8"), ("via", "u1"), ("trips", "<u2")])

NO_ROWS: Rows = np.empty(0, DUE_ROW)


def due_rows(deliver_at_ms: I64, seqs: I64, via: int, trips: int | U16) -> Rows:
    rows = np.empty(len(seqs), DUE_ROW)
    rows["deliver_at_ms"] = deliver_at_ms
    rows["seq"] = seqs
    rows["via"] = via
    rows["trips"] = trips
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
