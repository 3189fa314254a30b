"""Opening: from whatever a crash left to a state that equals the log.

Owns the order: take the newest index checkpoint that is of this log and that it still explains, else begin
at the log's first base frame; replay every frame behind it through `Indexes.apply`; cut the log's torn tail;
write the queue rows and settle the deliveries that the replay brought; cut derived rows beyond the end.

Invariant: the state after `recover` depends on the commit log alone. A missing, old or torn derived file
costs time, nothing else. Every frame from the checkpoint on must read back, and the log's first one; what is
damaged between them is found when it is read.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.frame import Frame
from tidemill.log.segments import SegmentedLog
from tidemill.store.formats.frames import Base, Kind, SendBack, Settlement
from tidemill.store.index_checkpoint import INDEX_FORMAT, checkpoint_head, restore_indexes
from tidemill.store.indexes import Indexes
from tidemill.store.topic_queues import TopicQueues

Progress = Callable[[int, int], None]  # bytes of log read, bytes to read


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did."""

    checkpoint_offset: int
    settlements: list[tuple[int, Settlement]]  # each with the offset of its frame


def recover(
    log: SegmentedLog,
    indexes: Indexes,
    queues: TopicQueues,
    checkpoint: Checkpoint,
    on_progress: Progress | None = None,
) -> Recovered:
    """Bring `indexes` and `queues` in line with the log, cutting the log's torn tail."""
    newest = checkpoint.load_newest()
    safe_end = int(checkpoint_head(newest.content)["offset"]) if newest is not None else 0
    content = newest.content if newest is not None and newest.version == INDEX_FORMAT else None
    if newest is not None and content is None:
        # Before there are rows that it does not describe: an older version would trust them.
        checkpoint.remove()
    if content is not None and safe_end < log.head:
        content = None  # the log was cut beyond it
    reflected = restore_indexes(indexes, content) if content is not None else log.head
    if reflected > log.head and not log.segment_starts():
        raise CorruptionError(
            f"{log.directory}: the commit log has no file left, but its index is there. Nothing was changed. "
            "Restore the log's files from a backup; to discard the data, use a new directory"
        )
    if content is not None and not _fits_head(log, indexes, queues, reflected):
        content, reflected = None, log.head
    if content is None:
        indexes.entries.cut_tail(0)
        queues.clear()
    indexes.find.open(log.head)
    must_start = content is None
    settlements: list[tuple[int, Settlement]] = []
    start = min(indexes.find.covers, reflected)
    for frame in _found_frames(log, indexes, start, reflected):
        if on_progress is not None:
            on_progress(frame.offset - start, log.size_from(start))
        indexes.apply_find_only(frame)
    for frame in log.recover(reflected, safe_end):
        if on_progress is not None:
            on_progress(frame.offset - start, log.size_from(start))
        if must_start:
            base = _first_base(frame)
            indexes.start_from(base)
            _set_queue_ends(indexes, queues)
            queues.set_base(base)
            must_start = False
        effects = indexes.apply(frame)
        if effects.publication is not None:
            queues.publish(effects.publication)
        if effects.forgotten_topic_id is not None:
            queues.forget(effects.forgotten_topic_id)
        settlements.extend((frame.offset, settlement) for settlement in effects.settlements)
    indexes.entries.cut_tail(indexes.ledger.next_seq)
    return Recovered(reflected, settlements)


def settlements_in(log: SegmentedLog, from_offset: int, end: int) -> list[tuple[int, Settlement]]:
    """What the frames in `[from_offset, end)` settle, each with the offset of its frame.

    The consumers' state may be of an older checkpoint than the indexes: where the newest was damaged.
    """
    return [
        (frame.offset, settlement)
        for frame in log.frames(from_offset, end)
        if frame.kind == Kind.SEND_BACK
        for settlement in SendBack.read(frame.payload).settles
    ]


def _found_frames(log: SegmentedLog, indexes: Indexes, start: int, end: int) -> Iterator[Frame]:
    """The frames that the checkpoint reflects and the find index does not. They need not all read back.

    Of what is damaged the ids of timed messages are put into the find index, as their entries have them.
    """
    at = start
    for frame in log.intact_frames(start, end):
        if frame.offset > at:
            _find_by_entries(indexes, at, frame.offset)
        yield frame
        at = frame.end
    if at < end:
        _find_by_entries(indexes, at, end)


def _find_by_entries(indexes: Indexes, start: int, stop: int) -> None:
    """Add the ids of the timed messages to the find index whose frames begin in `[start, stop)`."""
    known = range(indexes.ledger.head_seq, indexes.ledger.next_seq)

    def place_of(seq: int) -> int:
        return int(indexes.entries.read(seq, seq + 1)["place"][0])

    # Places rise with seqs.
    first, end = (
        known.start + bisect.bisect_left(known, offset << 16, key=place_of) for offset in (start, stop)
    )
    rows = indexes.entries.read(first, end)
    indexes.find.add(rows["id_hash"].astype(np.uint64), np.arange(first, end, dtype=np.uint64))


def _fits_head(log: SegmentedLog, indexes: Indexes, queues: TopicQueues, reflected: int) -> bool:
    """Bring restored indexes to the log's head; False where they know of something pending below it.

    The head may have been cut after the checkpoint was taken. What the checkpoint has pending below it was
    settled since, but its entries are gone and can no longer be counted out.
    """
    # Where it reflects no frame at all, even the first one may be torn.
    has_base = reflected > log.head
    first = next(log.frames(log.head, reflected)) if has_base else None  # its checksum is looked at
    base = _first_base(first) if first is not None else indexes.base()
    if indexes.ledger.first_pending() < base.next_seq:
        return False
    indexes.cut_head(base.next_seq)
    indexes.find_levels()
    _set_queue_ends(indexes, queues)
    queues.set_base(base)
    return True


def _first_base(frame: Frame) -> Base:
    if frame.kind != Kind.BASE:
        raise CorruptionError(
            f"the log begins at offset {frame.offset} with a frame of kind {frame.kind} instead of a base "
            "frame: its first file was not begun by Tidemill. Nothing was changed. Restore the data "
            "directory from a backup, or copy what can be read: `tidemill salvage DIR --to NEW`"
        )
    return Base.read(frame.payload)


def _set_queue_ends(indexes: Indexes, queues: TopicQueues) -> None:
    for topic in indexes.topics:
        for queue_id, end in enumerate(indexes.topics.offsets_of(topic)):
            queues.set_end((topic.id, queue_id), end)
