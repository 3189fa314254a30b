"""Cutting the head: what is past retention goes, and what is still alive there moves to the tail first.

Owns the order: choose the cut (`cut_offset`), let pending messages and open transactions re-enter, make
that safe, then cut the log and after it everything derived. Entries are read only of segments that are past
retention; looking through them, and moving survivors, goes a bounded part at a time, so that sends and
releases get their turn between.

Invariant: nothing pending is ever below the head. What moves is verified when it is read; a message whose
bytes are damaged cannot move, so the cut stays below it until it is released or cancelled. A cut only ever
ends at a base frame that reads back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from tidemill.log.frame import Frame
from tidemill.store.damaged_messages import held_by_damage
from tidemill.store.formats.frames import Base, ReEnterReason
from tidemill.store.formats.framing import MOVE_COUNT_MAX, moved_together
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore
from tidemill.store.upkeep.moving import MovedMessages, re_enter

OnMoved = Callable[[MovedMessages], None]

# How many seqs one look for survivors passes over.
_LOOK_ROWS = 64 * MOVE_COUNT_MAX
# How many entries are looked at under one hold of the writer lock, to count what is alive. Parts end at
# multiples of this, so that none spans two chunks of the table.
_COUNT_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """One sealed segment: where it lies, when it was sealed, and how much of it is alive."""

    start: int
    end: int
    sealed_at_ms: int
    live_bytes: int


def cut_offset(segments: Sequence[SegmentUse], now_ms: int, retention_ms: int, held_from: int | None) -> int:
    """The offset up to which the head shall be cut; the start of the first segment for "nothing".

    Moving what is alive is worth it once more of the old bytes are dead than alive. So a few long-lived
    messages never pin a disk, and the disk holds at most twice the live bytes plus what the retention keeps.

    `held_from` is the lowest log offset that must stay: of a message that a consumer holds right now, or of
    one that waits and cannot be moved because its bytes are damaged.
    """
    cut = segments[0].start if segments else 0
    total = live = 0
    for segment in segments:
        if segment.sealed_at_ms > now_ms - retention_ms:
            break
        if held_from is not None and segment.end > held_from:
            break
        total += segment.end - segment.start
        live += segment.live_bytes
        if live * 2 < total:
            cut = segment.end
    return cut


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
        held_from = _held_from(store, now_ms)
        cut = cut_offset(uses, now_ms, store.settings.retention_ms, held_from)
        base = _base_at(store, cut)
        if cut <= store.log.head or base is None:
            return []
        survivors, has_moved_all = _move_survivors(store, base.next_seq, now_ms, near_below_ms, on_moved)
        _move_halves(store, cut, now_ms)
        store.finish_all()
        with store.read():
            if not has_moved_all or _has_halves(store, cut):
                return survivors  # the next time it is known what is damaged
            # The log first: as long as it holds a frame, a replay may ask for the entries it names.
            store.log.cut_head(cut)
            store.indexes.cut_head(base.next_seq)
            store.find.cut_head(cut)
        store.queues.cut_head(base)
        return survivors


def _old_segments(store: MessageStore, now_ms: int) -> list[SegmentUse]:
    """The segments past retention, oldest first.

    What is alive in them only ever becomes less, so what is counted here is at most too much.
    """
    sealed_by_ms = now_ms - store.settings.retention_ms
    old = list(takewhile(lambda segment: segment[1].stamp_ms <= sealed_by_ms, _sealed(store)))
    with store.read():
        halves = [half.place >> 16 for half in store.open_transactions.values()] if old else []
    uses, first_seq = [], store.ledger.head_seq
    for start, frame in old:
        end_seq = Base.read(frame.payload).next_seq
        live = _live_bytes(store, first_seq, end_seq) + _count_in(halves, start, frame.offset)
        uses.append(SegmentUse(start, frame.offset, frame.stamp_ms, live))
        first_seq = end_seq
    return uses


def _sealed(store: MessageStore) -> Iterator[tuple[int, Frame]]:
    """Where each sealed segment starts, and the base frame that ends it.

    Where a base frame does not read back, two segments count as one: the log cannot begin between them.
    """
    start = store.log.head
    for at in store.log.segment_starts()[1:]:
        frame = store.log.intact_frame(at)
        if frame is not None:
            yield start, frame
            start = at


def _live_bytes(store: MessageStore, first: int, end_seq: int) -> int:
    """Bytes of what is pending of the seqs `[first, end_seq)`."""
    live = 0
    while first < end_seq:
        stop = min(end_seq, (first // _COUNT_ROWS + 1) * _COUNT_ROWS)
        with store.read():
            is_pending = store.ledger.range_states(first, stop) == State.PENDING
            rows = store.entries.read(first, stop, is_pending)
        # A row never changes, so the lock is not needed for adding up.
        live += int(rows["size"][is_pending].sum(dtype=np.int64))
        first = stop
    return live


def _count_in(offsets: list[int], start: int, end: int) -> int:
    return sum(1 for offset in offsets if start <= offset < end)


def _base_at(store: MessageStore, segment_start: int) -> Base | None:
    frame = store.log.intact_frame(segment_start)
    return Base.read(frame.payload) if frame is not None else None


def _has_halves(store: MessageStore, cut: int) -> bool:
    return any(half.place >> 16 < cut for half in store.open_transactions.values())


def _held_from(store: MessageStore, now_ms: int) -> int | None:
    """The lowest log offset of a message in a consumer's hands, or of one that cannot be moved."""
    offsets: list[int] = []
    damaged_from = held_by_damage(store)
    if damaged_from is not None:
        store.damaged.note_held(damaged_from)
        offsets.append(damaged_from)
    with store.consumers.lock:
        leased = list(store.consumers.state.leased(now_ms))
    for (_, topic_id, queue_id), offset in leased:
        rows = store.queues.read((topic_id, queue_id), offset, offset + 1)
        offsets.extend(int(place) >> 16 for place in rows["place"] if not store.is_expired(int(place)))
    return min(offsets, default=None)


def _move_survivors(
    store: MessageStore, end_seq: int, now_ms: int, near_below_ms: int, on_moved: OnMoved | None
) -> tuple[list[MovedMessages], bool]:
    """Move what is pending below a seq to the tail; also says whether all of it could be read."""
    survivors, has_moved_all = list[MovedMessages](), True
    first = store.ledger.head_seq
    while first < end_seq:
        with store.read():
            stop = min(end_seq, first + _LOOK_ROWS)
            pending = np.flatnonzero(store.ledger.range_states(first, stop) == State.PENDING)
            seqs = first + pending[:MOVE_COUNT_MAX]
            if not len(seqs):
                first = stop
                continue
            rows = store.entries.take(seqs)
            _, fits = next(moved_together(rows["size"]))
            seqs = seqs[:fits]
            first = int(seqs[-1]) + 1
            is_readable = store.are_readable(seqs)
            has_moved_all = has_moved_all and bool(is_readable.all())
            seqs, due = seqs[is_readable], rows["deliver_at_ms"][:fits][is_readable].astype(np.int64)
            if not len(seqs):
                continue
            moved_now = re_enter(store, seqs, due, ReEnterReason.RETENTION, near_below_ms, now_ms)
        survivors.append(moved_now)
        store.finish(moved_now.appended)
        if on_moved is not None:
            on_moved(moved_now)
    return survivors, has_moved_all


def _move_halves(store: MessageStore, cut: int, now_ms: int) -> None:
    with store.write() as tx:
        for half in list(tx.open_transactions.values()):
            message = store.readable(half.place) if half.place >> 16 < cut else None
            if message is not None:
                tx.put_halves([message], now_ms, [half.place])
