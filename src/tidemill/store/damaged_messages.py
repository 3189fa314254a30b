"""What the damaged frames of the commit log hold, as far as it is known without their bytes.

Reads only. The unit of damage is the frame: its checksum covers all of its messages. Entries and queue rows
have checksums of their own, so they still say of each message its topic, queue, times, size and the hash of
its id. A message that was cancelled or has moved is left out: its bytes are not needed any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidemill.core.errors import DamagedFrameError
from tidemill.core.model import NO_OFFSET, NO_SEQ, NO_TIME_MS
from tidemill.log.arrays import I64, Flags, Rows
from tidemill.store.derivation import QueueKey, next_offset_of
from tidemill.store.formats.frames import Base
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore

_SCAN_ROWS = 1 << 16
_PLACE_SHIFT = np.uint64(16)


@dataclass(frozen=True, slots=True)
class DamageCounts:
    """How many frames are damaged, and messages in them that are wanted; of those, how many still wait."""

    frames: int = 0
    messages: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """What the indexes say of a message whose bytes are damaged."""

    frame: DamagedFrameError
    place: int
    topic_id: int
    state: str  # pending, released, sent (at once), or open (a transaction)
    queue_id: int
    offset: int = NO_OFFSET  # in its queue
    seq: int = NO_SEQ
    deliver_at_ms: int = NO_TIME_MS
    stored_at_ms: int = NO_TIME_MS
    released_at_ms: int = NO_TIME_MS
    size: int = 0  # 0: not known
    id_hash: int = 0  # 0: not known
    message_id: str = ""  # known of an open transaction only


def damage_counts(store: MessageStore) -> DamageCounts:
    """How much of the log is known to be damaged."""
    frames = store.damaged.since(store.log.head)
    messages = pending = 0
    for frame in frames:
        seqs = _seqs_of(store, frame.offset)
        waiting = int(_in_state(store, seqs, State.PENDING).sum())
        pending += waiting
        messages += waiting + int(_in_state(store, seqs, State.RELEASED).sum()) + _row_count(store, frame)
    return DamageCounts(len(frames), messages, pending)


def held_by_damage(store: MessageStore) -> int | None:
    """The lowest offset of a damaged frame with a message that waits, or an open transaction."""
    frames = store.damaged.since(store.log.head)
    if not frames:
        return None
    halves = {half.place >> 16 for half in list(store.open_transactions.values())}
    return next(
        (
            frame.offset
            for frame in frames
            if frame.offset in halves or _in_state(store, _seqs_of(store, frame.offset), State.PENDING).any()
        ),
        None,
    )


def damaged_messages(store: MessageStore) -> Iterator[DamagedRow]:
    """Every message in a frame that is known to be damaged, in the order of the log."""
    for frame in store.damaged.since(store.log.head):
        yield from _timed(store, frame)
        for (topic_id, queue_id), offsets, rows in _rows_of(store, frame.offset):
            for offset, row in zip(offsets.tolist(), rows, strict=True):
                yield DamagedRow(
                    frame=frame,
                    place=int(row["place"]),
                    topic_id=topic_id,
                    state="sent" if int(row["seq"]) == NO_SEQ else "released",
                    queue_id=queue_id,
                    offset=offset,
                    seq=int(row["seq"]),
                    deliver_at_ms=int(row["deliver_at_ms"]),
                    stored_at_ms=int(row["released_at_ms"]) if int(row["seq"]) == NO_SEQ else NO_TIME_MS,
                    released_at_ms=int(row["released_at_ms"]),
                )
        for half in list(store.open_transactions.values()):
            if half.place >> 16 == frame.offset:
                yield DamagedRow(
                    frame=frame,
                    place=half.place,
                    topic_id=half.topic_id,
                    state="open",
                    queue_id=0,
                    stored_at_ms=half.stored_at_ms,
                    message_id=half.message_id,
                )


def row_of_place(store: MessageStore, place: int) -> tuple[QueueKey, int, Rows] | None:
    """Queue, offset and row of a message that went into its queue at once and is damaged."""
    for queue, offsets, rows in _rows_of(store, place >> 16):
        for at in np.flatnonzero(rows["place"] == place).tolist():
            return queue, int(offsets[at]), rows[at]
    return None


def frames_between(store: MessageStore, start: int, stop: int) -> list[int]:
    """Where in `[start, stop)` of the log, by entries and queue rows, frames with messages begin."""
    entries, _ = _entries_between(store, start, stop)
    places = [entries["place"], *(rows["place"] for _, _, rows in _rows_between(store, start, stop))]
    offsets: list[int] = np.unique(np.concatenate(places) >> _PLACE_SHIFT).tolist()
    return offsets


def _timed(store: MessageStore, frame: DamagedFrameError) -> Iterator[DamagedRow]:
    for seq in _seqs_of(store, frame.offset).tolist():
        with store.read():
            ledger = store.ledger
            state = ledger.state(seq) if seq >= ledger.head_seq else State.MOVED
            if state not in (State.PENDING, State.RELEASED):
                continue
            entry = store.entry(seq)
        queue = int(entry["topic_id"]), int(entry["queue_id"])
        found = None
        if state is State.RELEASED:
            found = store.queues.find_seq(queue, int(entry["deliver_at_ms"]), seq)
            if found is not None and int(found[1]["place"]) >> 16 != frame.offset:
                continue  # its bytes went along with the release
        yield DamagedRow(
            frame=frame,
            place=int(entry["place"]),
            topic_id=queue[0],
            state=state.name.lower(),
            queue_id=queue[1],
            offset=NO_OFFSET if found is None else found[0],
            seq=seq,
            deliver_at_ms=int(entry["deliver_at_ms"]),
            stored_at_ms=int(entry["stored_at_ms"]),
            released_at_ms=NO_TIME_MS if found is None else int(found[1]["released_at_ms"]),
            size=int(entry["size"]),
            id_hash=int(entry["id_hash"]),
        )


def _in_state(store: MessageStore, seqs: I64, state: State) -> Flags:
    ledger = store.ledger
    with store.read():
        known = seqs[seqs >= ledger.head_seq]
        is_in: Flags = ledger.states(known) == state
    return is_in


def _row_count(store: MessageStore, frame: DamagedFrameError) -> int:
    """How many messages a frame holds that are not timed, or travel with a release."""
    count = store.damaged.row_counts.get(frame.offset)
    if count is None:
        count = sum(len(rows) for _, _, rows in _rows_of(store, frame.offset))
        store.damaged.row_counts[frame.offset] = count
    return count


def _seqs_of(store: MessageStore, offset: int) -> I64:
    """Seqs of the timed messages in the frame at a log offset; which those are never changes."""
    known = store.damaged.seqs.get(offset)
    if known is None:
        known = store.damaged.seqs[offset] = _entries_between(store, offset, offset + 1)[1]
    return known


def _rows_of(store: MessageStore, offset: int) -> list[tuple[QueueKey, I64, Rows]]:
    """Rows, by queue, of what a frame holds that was sent at once, or that travels with a release."""
    timed = _seqs_of(store, offset)
    found = []
    for queue, offsets, rows in _rows_between(store, offset, offset + 1):
        is_own = ~np.isin(rows["seq"], timed)
        if is_own.any():
            found.append((queue, offsets[is_own], rows[is_own]))
    return found


def _entries_between(store: MessageStore, start: int, stop: int) -> tuple[Rows, I64]:
    """Entries, and their seqs, of the timed messages whose frames begin in `[start, stop)` of the log."""
    before, after = _bases_around(store, start, stop)
    ledger, entries = store.ledger, store.entries
    first = ledger.head_seq if before is None else before.next_seq
    end = ledger.next_seq if after is None else after.next_seq
    found, seqs = [entries.take(np.empty(0, np.int64))], [np.empty(0, np.int64)]
    while first < end:
        with store.read():
            first = max(first, ledger.head_seq)
            stop_seq = max(first, min(end, (first // _SCAN_ROWS + 1) * _SCAN_ROWS))
            rows = entries.read(first, stop_seq)
            chosen = np.flatnonzero(_is_between(rows["place"], start, stop))
            found.append(rows[chosen])
            seqs.append(first + chosen)
        first = stop_seq
    return np.concatenate(found), np.concatenate(seqs)


def _rows_between(store: MessageStore, start: int, stop: int) -> Iterator[tuple[QueueKey, I64, Rows]]:
    """Rows, by queue, that point to frames in `[start, stop)` of the log and came in the same segment."""
    before, after = _bases_around(store, start, stop)
    for topic in list(store.topics):
        for queue_id in range(topic.queue_count):
            queue = (topic.id, queue_id)
            first = store.queues.head(queue) if before is None else next_offset_of(before, queue)
            end = store.queues.end(queue) if after is None else next_offset_of(after, queue)
            while first < end:
                rows = store.queues.read(queue, first, min(end, first + _SCAN_ROWS))
                if not len(rows):
                    break
                chosen = np.flatnonzero(_is_between(rows["place"], start, stop))
                if len(chosen):
                    yield queue, first + chosen, rows[chosen]
                first += len(rows)


def _is_between(places: I64, start: int, stop: int) -> Flags:
    offsets = places >> _PLACE_SHIFT
    is_between: Flags = (offsets >= np.uint64(start)) & (offsets < np.uint64(stop))
    return is_between


def _bases_around(store: MessageStore, start: int, stop: int) -> tuple[Base | None, Base | None]:
    """The nearest base frames that read back, before and behind a part of the log."""
    before = after = None
    for at in store.log.segment_starts():
        if start < at < stop:
            continue
        if at > start and after is not None:
            break
        frame = store.log.intact_frame(at)
        if frame is not None:
            base = Base.read(frame.payload)
            before, after = (base, None) if at <= start else (before, base)
    return before, after
