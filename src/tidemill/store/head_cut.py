"""Cutting the head: what is past retention goes, and what is still alive there moves to the tail first.

Owns the order: choose the cut (`retention.py`), let pending messages and open transactions re-enter, make
that safe, then cut the log and after it everything derived. Entries are read only of segments that are past
retention; looking through them, and moving survivors, goes a bounded part at a time, so that sends and
releases get their turn between.

Invariant: nothing pending is ever below the head.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, takewhile

import numpy as np

from tidemill.store.frames import Base, ReEnterReason
from tidemill.store.framing import MOVE_COUNT_MAX, moved_together
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore
from tidemill.store.moving import MovedMessages, re_enter
from tidemill.store.retention import SegmentUse, cut_offset

OnMoved = Callable[[MovedMessages], None]

# How many seqs one look for survivors passes over.
_LOOK_ROWS = 64 * MOVE_COUNT_MAX
# How many entries are looked at under one hold of the writer lock, to count what is alive. Parts end at
# multiples of this, so that none spans two chunks of the table.
_COUNT_ROWS = 1 << 16


def cut_head(
    store: MessageStore, now_ms: int, near_below_ms: int, on_moved: OnMoved | None = None
) -> list[MovedMessages]:
    """Apply retention: let survivors re-enter, then cut. Returns the survivors' new seqs.

    `on_moved` hears of each part of them as soon as it is safe: some may be due any moment.
    """
    with store.upkeep_lock:
        uses = _old_segments(store, now_ms)
        if not uses:
            return []
        leased_from = _leased_from(store, now_ms)
        cut = cut_offset(uses, now_ms, store.settings.retention_ms, leased_from)
        if cut <= store.log.head:
            return []
        survivors = _move_survivors(store, cut, now_ms, near_below_ms, on_moved)
        _move_halves(store, cut, now_ms)
        store.writer.finish_all()
        with store.writer.lock:
            base = _base_at(store, cut)
            # The log first: as long as it holds a frame, a replay may ask for the entries it names.
            store.log.cut_head(cut)
            store.indexes.cut_head(base.next_seq)
            store.indexes.find.cut_head(cut)
        store.queues.cut_head(base)
        return survivors


def _old_segments(store: MessageStore, now_ms: int) -> list[SegmentUse]:
    """The segments past retention, oldest first.

    What is alive in them only ever becomes less, so what is counted here is at most too much.
    """
    sealed = (
        (start, end, store.log.frame(end).stamp_ms) for start, end in pairwise(store.log.segment_starts())
    )
    old = list(takewhile(lambda part: part[2] <= now_ms - store.settings.retention_ms, sealed))
    with store.writer.lock:
        halves = [half.place >> 16 for half in store.indexes.open_halves.values()] if old else []
    return [
        SegmentUse(start, end, sealed_at_ms, _live_bytes(store, start, end) + _count_in(halves, start, end))
        for start, end, sealed_at_ms in old
    ]


def _live_bytes(store: MessageStore, start: int, end: int) -> int:
    """Bytes of what is pending of a segment."""
    live = 0
    first, end_seq = _base_at(store, start).next_seq, _base_at(store, end).next_seq
    while first < end_seq:
        stop = min(end_seq, (first // _COUNT_ROWS + 1) * _COUNT_ROWS)
        with store.writer.lock:
            is_pending = store.indexes.ledger.range_states(first, stop) == State.PENDING
            rows = store.indexes.entries.read(first, stop, is_pending)
        # A row never changes, so the lock is not needed for adding up.
        live += int(rows["size"][is_pending].sum(dtype=np.int64))
        first = stop
    return live


def _count_in(offsets: list[int], start: int, end: int) -> int:
    return sum(1 for offset in offsets if start <= offset < end)


def _base_at(store: MessageStore, segment_start: int) -> Base:
    return Base.read(store.log.frame(segment_start).payload)


def _leased_from(store: MessageStore, now_ms: int) -> int | None:
    """The lowest log offset of a message in a consumer's hands."""
    offsets: list[int] = []
    with store.consumers.lock:
        leased = list(store.consumers.state.leased(now_ms))
    for (_, topic_id, queue_id), offset in leased:
        rows = store.queues.read((topic_id, queue_id), offset, offset + 1)
        offsets.extend(int(place) >> 16 for place in rows["place"] if not store.is_expired(int(place)))
    return min(offsets, default=None)


def _move_survivors(
    store: MessageStore, cut: int, now_ms: int, near_below_ms: int, on_moved: OnMoved | None
) -> list[MovedMessages]:
    survivors = []
    end_seq = _base_at(store, cut).next_seq
    first = store.indexes.ledger.head_seq
    while first < end_seq:
        with store.writer.lock:
            stop = min(end_seq, first + _LOOK_ROWS)
            pending = np.flatnonzero(store.indexes.ledger.range_states(first, stop) == State.PENDING)
            seqs = first + pending[:MOVE_COUNT_MAX]
            if not len(seqs):
                first = stop
                continue
            rows = store.indexes.entries.take(seqs)
            _, fits = next(moved_together(rows["size"]))
            seqs = seqs[:fits]
            due = rows["deliver_at_ms"][:fits].astype(np.int64)
            moved_now = re_enter(store, seqs, due, ReEnterReason.RETENTION, near_below_ms, now_ms)
            first = int(seqs[-1]) + 1
        survivors.append(moved_now)
        store.writer.finish(moved_now.appended)
        if on_moved is not None:
            on_moved(moved_now)
    return survivors


def _move_halves(store: MessageStore, cut: int, now_ms: int) -> None:
    with store.writer.lock:
        for half in list(store.indexes.open_halves.values()):
            if half.place >> 16 < cut:
                store.writer.put_halves([store.message(half.place)], now_ms, [half.place])
