"""Rows of the derived tables, derived again from the commit log.

Owns nothing; reads the log and needs no lock. It finds the segment by its base frame (next seq, next offset
of every queue) and reads every frame of it that reads back. Sections and release records name their seqs
and queue offsets themselves, so a damaged frame hides only its own rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.core.model import NO_TIME_MS
from tidemill.log.arrays import I64, Flags, Rows
from tidemill.log.frame import Frame
from tidemill.log.segments import SegmentedLog
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.entry_rows import entry_rows
from tidemill.store.formats.frame_contents import messages_in
from tidemill.store.formats.frames import Base, Gap, Kind, Release
from tidemill.store.formats.lost_rows import lost_entries, lost_queue_rows
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.queue_rows import direct_rows, released_rows

_NO_END = 1 << 62

QueueKey = tuple[int, int]  # topic id, queue id


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the log that one segment holds (several, where base frames are damaged), and its rows."""

    start: int
    stop: int
    first: int  # of the rows of one table that its frames made
    end: int


class Derivation:
    """Derives rows from the frames of a log. Thread-safe."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log

    # -- entries ----------------------------------------------------------------------------------

    def stretch_of_seq(self, seq: int) -> Stretch:
        """Where in the log a seq was made."""
        return self._stretch(seq, lambda base: base.next_seq)

    def entries(self, stretch: Stretch, end_seq: int) -> tuple[Rows, Flags]:
        """The entries made in a stretch, below `end_seq`, and which of them are known from the log.

        Their checks are left out.
        """
        first_seq, end_seq = stretch.first, min(stretch.end, end_seq)
        rows = np.zeros(max(0, end_seq - first_seq), ENTRY)
        is_known = np.zeros(len(rows), np.bool_)
        for frame in self._log.intact_frames(stretch.start, stretch.stop):
            made_first, made = _entries_made_by(frame)
            at = made_first - first_seq + np.arange(len(made))
            inside = (at >= 0) & (at < len(rows))
            at = at[inside]
            rows[at], is_known[at] = made[inside], True
        return rows, is_known

    # -- queue rows -------------------------------------------------------------------------------

    def stretch_of_offset(self, queue: QueueKey, offset: int) -> Stretch:
        """Where in the log an offset of a queue was given to a message."""
        return self._stretch(offset, lambda base: next_offset_of(base, queue))

    def queue_rows(self, queue: QueueKey, stretch: Stretch, end_offset: int) -> tuple[Rows, Flags]:
        """The rows of a queue that came in a stretch, below `end_offset`; which are known from the log."""
        first, end = stretch.first, min(stretch.end, end_offset)
        rows = np.zeros(max(0, end - first), QUEUE_ROW)
        is_known = np.zeros(len(rows), np.bool_)
        for frame in self._log.intact_frames(stretch.start, stretch.stop):
            offsets, found = self._rows_in(frame, queue)
            inside = (offsets >= first) & (offsets < end)
            at = offsets[inside] - first
            rows[at], is_known[at] = found[inside], True
        return rows, is_known

    def _rows_in(self, frame: Frame, queue: QueueKey) -> tuple[I64, Rows]:
        """Offsets and rows that one frame puts into a queue."""
        topic_id, queue_id = queue
        if frame.kind == Kind.RELEASE:
            return self._released_in(frame, Release.read(frame.payload), queue)
        if frame.kind == Kind.GAP:
            return _lost_in(frame, Gap.read(frame.payload), queue)
        section = messages_in(frame) if frame.kind != Kind.RE_ENTER else None
        if section is None:
            return np.empty(0, np.int64), np.empty(0, QUEUE_ROW)
        columns = section.columns()
        is_wanted = (columns.topic_id == topic_id) & (columns.queue_id == queue_id)
        direct = np.flatnonzero(is_wanted & (columns.deliver_at_ms == NO_TIME_MS))
        return columns.queue_offset[direct], direct_rows(frame.offset, direct, frame.stamp_ms)

    def _released_in(self, frame: Frame, release: Release, queue: QueueKey) -> tuple[I64, Rows]:
        ends = np.cumsum(release.groups["count"])
        is_wanted = np.zeros(len(release.seqs), np.bool_)
        offsets = np.zeros(len(release.seqs), np.int64)
        for group, end in zip(release.groups, ends.tolist(), strict=True):
            if (int(group["topic_id"]), int(group["queue_id"])) == queue:
                start = end - int(group["count"])
                is_wanted[start:end] = True
                offsets[start:end] = int(group["first_offset"]) + np.arange(end - start)
        if not is_wanted.any():
            return np.empty(0, np.int64), np.empty(0, QUEUE_ROW)
        entries, is_known = self._entries_of(release.seqs, is_wanted)
        # What travels by value needs nothing of its entry.
        is_known[release.value_indexes] = True
        is_wanted &= is_known
        return offsets[is_wanted], released_rows(frame, release, entries)[is_wanted]

    def _entries_of(self, seqs: I64, is_wanted: Flags) -> tuple[Rows, Flags]:
        """Entries of the wanted seqs; those below the log's head are zeros: their messages have expired."""
        entries = np.zeros(len(seqs), ENTRY)
        entries["deliver_at_ms"] = NO_TIME_MS
        is_known = np.zeros(len(seqs), np.bool_)
        left = np.flatnonzero(is_wanted)
        while len(left):
            stretch = self.stretch_of_seq(int(seqs[left].min()))
            rows, known = self.entries(stretch, int(seqs[left].max()) + 1)
            here = left[seqs[left] < stretch.end]
            at = seqs[here] - stretch.first
            inside = at >= 0  # else below the head
            entries[here[inside]], is_known[here[inside]] = rows[at[inside]], known[at[inside]]
            is_known[here[~inside]] = True
            left = left[seqs[left] >= stretch.end]
        return entries, is_known

    # -- where ------------------------------------------------------------------------------------

    def _stretch(self, number: int, next_of: Callable[[Base], int]) -> Stretch:
        start, stop = self._log.head, _NO_END
        first, end = 0, _NO_END
        is_first = True
        for offset in self._log.segment_starts():
            frame = self._log.intact_frame(offset)
            if frame is None or frame.kind != Kind.BASE:
                continue
            here = next_of(Base.read(frame.payload))
            if here > number and not is_first:
                stop, end = offset, here
                break
            start, first, is_first = offset, here, False
        return Stretch(start, stop, first, end)


def _entries_made_by(frame: Frame) -> tuple[int, Rows]:
    """The first seq that a frame made, and the entries from there on."""
    if frame.kind == Kind.GAP:
        gap = Gap.read(frame.payload)
        return gap.first_seq, lost_entries(gap.next_seq - gap.first_seq)
    section = messages_in(frame)
    if section is None:
        return 0, np.empty(0, ENTRY)
    columns = section.columns()
    return section.first_seq, entry_rows(frame.offset, columns, columns.timed_rows)


def _lost_in(frame: Frame, gap: Gap, queue: QueueKey) -> tuple[I64, Rows]:
    """Offsets and rows of a queue that a gap stands for."""
    for topic_id, queue_id, first, end in gap.queues:
        if (topic_id, queue_id) == queue:
            return np.arange(first, end), lost_queue_rows(end - first, frame.stamp_ms)
    return np.empty(0, np.int64), np.empty(0, QUEUE_ROW)


def next_offset_of(base: Base, queue: QueueKey) -> int:
    """The offset that the next message of a queue gets at a base frame; 0 where it is not there yet."""
    offsets = base.next_offsets.get(str(queue[0]), [])
    return int(offsets[queue[1]]) if queue[1] < len(offsets) else 0


def ranges_of(indexes: I64) -> list[tuple[int, int]]:
    """Rising indexes as ranges `[start, end)` of neighbours."""
    if not len(indexes):
        return []
    breaks = np.flatnonzero(np.diff(indexes) > 1)
    starts, ends = np.r_[indexes[0], indexes[breaks + 1]], np.r_[indexes[breaks], indexes[-1]] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def not_derivable(what: str) -> CorruptionError:
    """The error for a row that is damaged together with the part of the log that it comes from."""
    return CorruptionError(
        f"{what} is damaged, and so is the frame of the commit log that it comes from. Stop the broker and "
        "run `tidemill salvage DIR --to NEW` to copy what can be read"
    )
