"""The topics' queues: for every (topic, queue) a table of rows that point into the commit log.

Owns the row tables `<topic id>/<queue id>/` and how far each is *visible*. Rows are written only after the
frame they come from is safe, in frame order, so a consumer never sees what a power cut could take back.
Derived: rebuilt from the log, synced only when the index checkpoint is taken. A row is given its check when
it is written; one that fails it when it is read is derived again from the log.

A queue's *head* is the offset that the base frame at the log's head gives it: rows below came with frames
that are cut, and so are their messages.

Invariant: rows from `head` to `end` of a queue are written; a replay writes the same rows again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.log.arrays import I64, Rows
from tidemill.log.disk import Disk
from tidemill.log.row_table import MakeRoom, RowTable
from tidemill.store.damage import Derived, Repairs
from tidemill.store.derivation import Derivation, QueueKey, next_offset_of, not_derivable, ranges_of
from tidemill.store.formats.frames import Base
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.row_check import Salts, salts_of, seal, sealed_mask

_OPEN_TABLES_MAX = 512
# A message is in its queue within this many rows of where its due time points, unless the queue was paused.
# Most are within the first few, so few are looked at first; then twice as many each time, up to a bound.
_SEARCH_ROWS = 1 << 10
_SEARCH_ROWS_MAX = 1 << 16
_SEARCH_ROUNDS = 22


@dataclass(frozen=True, slots=True)
class Publication:
    """Queue rows that a frame brings, to be written once it is safe. Rows of one queue stand together."""

    frame_end: int
    queues: list[QueueKey]
    first_offsets: list[int]
    counts: list[int]
    rows: Rows


class TopicQueues:
    """Rows of every queue. Thread-safe."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        make_room: MakeRoom,
        chunk_rows: int,
        derivation: Derivation,
        repairs: Repairs,
    ) -> None:
        self._disk = disk
        self._derivation = derivation
        self._repairs = repairs
        self._directory = directory
        self._make_room = make_room
        self._chunk_rows = chunk_rows
        self._tables: OrderedDict[QueueKey, RowTable] = OrderedDict()
        self._unsynced: set[QueueKey] = set()
        self._closed_dirty: dict[QueueKey, frozenset[int]] = {}  # of tables closed to make place for others
        self._ends: dict[QueueKey, int] = {}
        self._base = Base(0, [], {}, {})  # the one at the log's head
        self._lock = threading.RLock()  # protects the open tables and the ends

    def publish(self, publication: Publication) -> None:
        """Write the rows and make them visible."""
        seal(publication.rows, _salts_of(publication))
        done = 0
        for queue, first, count in zip(
            publication.queues, publication.first_offsets, publication.counts, strict=True
        ):
            with self._lock:
                self._write(queue, first, publication.rows[done : done + count])
                self._ends[queue] = max(self._ends.get(queue, 0), first + count)
            done += count

    def _write(self, queue: QueueKey, first: int, rows: Rows) -> None:
        self._table(queue).write(first, rows)
        self._unsynced.add(queue)

    def end(self, queue: QueueKey) -> int:
        """Offset behind the last visible row."""
        return self._ends.get(queue, 0)

    def ends(self) -> dict[QueueKey, int]:
        return dict(self._ends)

    def set_end(self, queue: QueueKey, end: int) -> None:
        """What recovery knows of a queue: rows up to here are in the table or expired."""
        self._ends[queue] = max(self._ends.get(queue, 0), end)

    def read(self, queue: QueueKey, first: int, end: int) -> Rows:
        """Rows `[first, end)` below the visible end; rows below the head are zeros: place 0, expired."""
        end = min(end, self.end(queue))
        if first >= end:
            return np.empty(0, QUEUE_ROW)
        kept = min(end, max(first, self.head(queue)))
        rows = self._sound(queue, kept, end)
        return rows if kept == first else np.concatenate((np.zeros(kept - first, QUEUE_ROW), rows))

    def find_seq(self, queue: QueueKey, due_ms: int, seq: int) -> tuple[int, Rows] | None:
        """Offset and row of a seq; none came into the queue before its due time."""
        first = self.offset_at_time(queue, due_ms)
        for doublings in range(_SEARCH_ROUNDS):
            count = min(_SEARCH_ROWS << doublings, _SEARCH_ROWS_MAX)
            rows = self.read(queue, first, first + count)
            if not len(rows):
                return None
            hits = np.flatnonzero((rows["seq"] == seq) & (rows["place"] > 0))
            if len(hits):
                return first + int(hits[0]), rows[int(hits[0])]
            first += len(rows)
        return None

    def _sound(self, queue: QueueKey, first: int, end: int) -> Rows:
        """A copy of the rows `[first, end)`, those that are damaged derived again."""
        rows = self._copy(queue, first, end)
        damaged = _damaged(queue, first, rows)
        if not len(damaged):
            return rows
        for offset in damaged.tolist():
            if _damaged(queue, offset, self._copy(queue, offset, offset + 1)).size:
                self._repair(queue, offset)
        rows = self._copy(queue, first, end)
        damaged = _damaged(queue, first, rows)
        if len(damaged):
            raise not_derivable(f"{self._path(queue)}: the row at offset {int(damaged[0])}")
        return rows

    def _copy(self, queue: QueueKey, first: int, end: int) -> Rows:
        with self._lock:
            return self._table(queue).read(first, end).copy()

    def _repair(self, queue: QueueKey, offset: int) -> None:
        """Derive every damaged row that came in the same segment as this one. Takes no lock for the log."""
        stretch = self._derivation.stretch_of_offset(queue, offset)
        derived, is_known = self._derivation.queue_rows(queue, stretch, self.end(queue))
        with self._lock:
            present = self._table(queue).read(stretch.first, stretch.first + len(derived))
            is_bad = np.zeros(len(derived), np.bool_)
            is_bad[_damaged(queue, stretch.first, present) - stretch.first] = True
            for start, end in ranges_of(np.flatnonzero(is_bad & is_known)):
                first, rows = stretch.first + start, derived[start:end]
                seal(rows, _salts(queue, first, len(rows)))
                self._write(queue, first, rows)
                what = f"the rows of offsets {first} to {stretch.first + end - 1}"
                self._repairs.add(Derived.QUEUES, self._path(queue), what, end - start)

    def head(self, queue: QueueKey) -> int:
        """Lowest offset whose row came with a frame that is still in the log."""
        return next_offset_of(self._base, queue)

    def first_live(self, queue: QueueKey, log_head: int) -> int:
        """Lowest offset whose message is still in the log (places need not rise, so look at each)."""
        first, end = self.head(queue), self.end(queue)
        while first < end:
            rows = self.read(queue, first, min(end, first + self._chunk_rows))
            live = np.flatnonzero((rows["place"] >> np.uint64(16) >= log_head) & (rows["place"] > 0))
            if len(live):
                return first + int(live[0])
            first += len(rows)
        return end

    def offset_at_time(self, queue: QueueKey, released_at_ms: int) -> int:
        """The first offset that came into the queue at `released_at_ms` or after."""
        low, high = self.head(queue), self.end(queue)
        while low < high:
            middle = (low + high) // 2
            if int(self.read(queue, middle, middle + 1)["released_at_ms"][0]) < released_at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def set_base(self, base: Base) -> None:
        """What recovery knows: the base frame at the log's head."""
        self._base = base

    def cut_head(self, base: Base) -> None:
        """Drop the rows that came before `base`, the base frame at the log's new head."""
        self.set_base(base)
        for queue in self.ends():
            with self._lock:
                if queue in self._ends:
                    self._table(queue).cut_head(self.head(queue))

    def clear(self) -> None:
        """Drop every row, durably: what an earlier life left must not come back under a new one."""
        assert not self._tables
        if self._disk.exists(self._directory):
            self._disk.remove_tree(self._directory)
            self._disk.sync_dir(self._directory.parent)

    def forget(self, topic_id: int) -> None:
        """A topic was deleted: its queues go."""
        with self._lock:
            for queue in [q for q in self._ends if q[0] == topic_id]:
                del self._ends[queue]
                table = self._tables.pop(queue, None)
                if table is not None:
                    table.close()
                self._unsynced.discard(queue)
                self._closed_dirty.pop(queue, None)
        self._disk.remove_tree(self._directory / str(topic_id))

    def sync(self) -> None:
        """Make every row published so far survive a power cut. Others publish and read meanwhile."""
        with self._lock:
            unsynced = sorted(self._unsynced)
        for queue in unsynced:
            with self._lock:
                if queue not in self._unsynced:
                    continue  # its topic was deleted
                self._unsynced.discard(queue)
                begun = self._table(queue).begin_sync()
            try:
                begun.run()
            except BaseException:
                with self._lock:
                    self._table(queue).undo_sync(begun)
                    self._unsynced.add(queue)
                raise

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        self._tables.clear()

    def _table(self, queue: QueueKey) -> RowTable:
        table = self._tables.get(queue)
        if table is not None:
            self._tables.move_to_end(queue)
            return table
        if len(self._tables) >= _OPEN_TABLES_MAX:
            oldest, closing = self._tables.popitem(last=False)
            if closing.dirty_chunks:
                # A sync here would hold up a release by milliseconds for each of many queues.
                self._closed_dirty[oldest] = closing.dirty_chunks
            closing.close()
        table = self._tables[queue] = RowTable(
            self._disk, self._path(queue), QUEUE_ROW, self._chunk_rows, self._make_room
        )
        table.cut_tail(self.end(queue))
        table.cut_head(self.head(queue))  # a power cut may bring back a file that was dropped
        table.take_over(self._closed_dirty.pop(queue, frozenset()))
        return table

    def _path(self, queue: QueueKey) -> Path:
        return self._directory / str(queue[0]) / str(queue[1])


def _salts(queue: QueueKey, first: int, count: int) -> Salts:
    return salts_of(np.arange(first, first + count), queue[0] << 16 | queue[1])


def _salts_of(publication: Publication) -> Salts:
    if len(publication.queues) == 1:
        return _salts(publication.queues[0], publication.first_offsets[0], publication.counts[0])
    counts = np.array(publication.counts)
    firsts = np.array(publication.first_offsets) - (np.cumsum(counts) - counts)
    queues = np.array(publication.queues)
    tables = np.repeat(queues[:, 0] << 16 | queues[:, 1], counts)
    return salts_of(np.arange(len(publication.rows)) + np.repeat(firsts, counts), tables)


def _damaged(queue: QueueKey, first: int, rows: Rows) -> I64:
    """The offsets of the rows from `first` on that fail their check."""
    return first + np.flatnonzero(~sealed_mask(rows, _salts(queue, first, len(rows))))


_FIRST = np.zeros(1, np.int64)
_ONE = np.ones(1, np.int64)


def grouped(partitions: I64) -> tuple[I64, I64, I64]:
    """Order that groups equal partitions (keeping their order), where each group starts, and its size."""
    if len(partitions) == 1:
        return _FIRST, _FIRST, _ONE
    narrow = (
        partitions.astype(np.uint16) if len(partitions) and int(partitions.max()) < 1 << 16 else partitions
    )
    order = np.argsort(narrow, kind="stable")
    sorted_partitions = partitions[order]
    is_start = np.ones(len(partitions), np.bool_)
    is_start[1:] = sorted_partitions[1:] != sorted_partitions[:-1]
    starts = np.flatnonzero(is_start)
    return order, starts, np.diff(np.r_[starts, len(partitions)])
