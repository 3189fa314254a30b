"""The interface of the store layer: the log and indexes of one data directory, opened, read, kept and closed.

Owns the parts and their wiring: commit log, consumer log, indexes, queues, ballast, checkpoints. A change of
the commit log takes two steps:

    with store.write() as tx:         # holds the writer lock; never syncs
        appended = tx.append(messages, now_ms)
    store.finish(appended)            # waits until it is durable, and publishes

A reader that needs several things of one moment holds `store.read()`. The layers above use neither the lock
nor `indexes` in any other way. Consumer state is written through `consumers` (consumer_log.py).

This module also takes checkpoints; `message_reads.py` reads messages back and finds them, `moving.py`
reschedules, `head_cut.py` applies retention. It knows no clock: the caller passes the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from tidemill.core.errors import DiskFullError
from tidemill.core.histogram import Histogram
from tidemill.core.limits import DAY_MS, MIB, SEGMENT_BYTES
from tidemill.core.model import SEQ_MAX
from tidemill.log.arrays import I64, Rows
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.log.group_commit import GroupCommit
from tidemill.log.segments import SegmentedLog
from tidemill.store.commit_log import Appended, CommitLog
from tidemill.store.consumers.consumer_log import CONSUMERS_NAME, ConsumerLog
from tidemill.store.damage import Repairs
from tidemill.store.derivation import Derivation
from tidemill.store.disk_space import DiskSpace
from tidemill.store.find.find_upkeep import SCRUB_BYTES, FindUpkeep
from tidemill.store.formats.frames import Base, Kind
from tidemill.store.index_checkpoint import INDEX_FORMAT, note_indexes, origin_of, require_own
from tidemill.store.indexes import Indexes, IndexSizes
from tidemill.store.ledger import State
from tidemill.store.message_reads import MessageReads
from tidemill.store.publishing import Publisher
from tidemill.store.recovery import Progress, recover, settlements_in
from tidemill.store.topic_histograms import DELAY_BOUNDS_MS, TopicHistogram, TopicNames
from tidemill.store.topic_queues import TopicQueues
from tidemill.store.totals import Totals
from tidemill.store.upkeep.ballast import BALLAST_BYTES, Ballast

OnFault = Callable[[str, BaseException], None]  # the part it happened in, and what
# How many entries are looked at under one hold of the writer lock, to move the lower bound of what is near.
_FLOOR_ROWS = 1 << 16
_SCAN_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes and promises of a store; tests make the sizes small."""

    segment_bytes: int = SEGMENT_BYTES
    consumer_segment_bytes: int = 8 * MIB
    ballast_bytes: int = BALLAST_BYTES
    commits_in_flight: int = 4
    is_sync: bool = True
    retention_ms: int = 3 * DAY_MS
    sizes: IndexSizes = field(default_factory=IndexSizes)


class MessageStore(MessageReads):
    """An open data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        settings: StoreSettings,
        on_progress: Progress | None = None,
        on_fault: OnFault = lambda part, error: None,
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.repairs = Repairs()
        self.ballast = Ballast(disk, directory / "ballast", settings.ballast_bytes)
        self.log = SegmentedLog(
            disk,
            directory / "log",
            segment_bytes=settings.segment_bytes,
            opening=lambda _: self._opening(),
            make_room=self.ballast.throw_some,
        )
        index_directory = directory / "index"
        disk.make_dir(index_directory)
        sizes, derivation = settings.sizes, Derivation(self.log)
        self.indexes = Indexes.create(
            disk, index_directory, self.ballast.throw_some, sizes, derivation, self.repairs
        )
        queues, chunk_rows = index_directory / "queues", sizes.queue_chunk_rows
        self.queues = TopicQueues(disk, queues, self.ballast.throw_some, chunk_rows, derivation, self.repairs)
        self.consumers = ConsumerLog(
            disk,
            directory / CONSUMERS_NAME,
            segment_bytes=settings.consumer_segment_bytes,
            in_flight_max=settings.commits_in_flight,
            is_sync=settings.is_sync,
            make_room=self.ballast.throw_some,
            on_fault=partial(on_fault, "consumer log"),
        )
        own = partial(require_own, self.log)
        self._checkpoint = Checkpoint(disk, index_directory, "checkpoint", INDEX_FORMAT, own)
        recovered = recover(self.log, self.indexes, self.queues, self._checkpoint, on_progress)
        super().__init__(self.log, self.indexes)
        self._count_from_now_on()
        self._checkpoint_offset = recovered.checkpoint_offset
        self.consumers.recover()
        missed = settlements_in(self.log, self.consumers.settled_below, recovered.checkpoint_offset)
        self.consumers.settle_again([*missed, *recovered.settlements])
        self._clamp_consumers()
        self.ballast.fill()
        self.disk_space = DiskSpace(disk, directory, self.log, self.ballast)
        self._publisher = self._make_publisher(partial(on_fault, "commit log"))
        self.notifier = self._publisher.notifier
        self.writer = CommitLog(self.log, self.indexes, self.disk_space, self._publisher)
        self.disk_space.look()
        self._find_upkeep = FindUpkeep(self.indexes.find, self.log, self.read(), self.finish_all)
        with suppress(DiskFullError):  # the maintenance service derives the rest when there is space again
            self._find_upkeep.derive_lost()
        self._begun: dict[int, int | None] = {}  # when segments were begun, as far as asked for
        self.upkeep_lock = threading.Lock()  # one checkpoint, head cut or backup at a time

    def _count_from_now_on(self) -> None:
        """What the log was read for was counted by an earlier process."""
        self.topic_names = TopicNames(lambda: self.indexes.topics)
        self.requested_delays = TopicHistogram(self.topic_names, DELAY_BOUNDS_MS)
        self.indexes.requested_delays = self.requested_delays

    def _make_publisher(self, on_fault: Callable[[BaseException], None]) -> Publisher:
        in_flight, is_sync = self.settings.commits_in_flight, self.settings.is_sync
        self._commit = GroupCommit(self.log, in_flight_max=in_flight, is_sync=is_sync, on_fault=on_fault)
        settle, safe_seq = self.consumers.settle_from_commit_log, self.indexes.ledger.next_seq
        return Publisher(self.log, self._commit, self.queues, settle, on_fault, safe_seq)

    def _opening(self) -> tuple[int, bytes]:
        (payload,) = self.indexes.base().parts()
        return Kind.BASE, bytes(payload)

    def start_from(self, base: Base) -> None:
        """Take over the state that a base frame has. Only for a copy that has no frame yet."""
        self.indexes.start_from(base)
        self.bind()
        self.writer.bind()
        for topic in self.topics:
            for queue_id, end in enumerate(self.topics.offsets_of(topic)):
                self.queues.set_end((topic.id, queue_id), end)
        self.queues.set_base(base)

    def _clamp_consumers(self) -> None:
        for group_queue, _ in self.consumers.state.group_queues():
            _, topic_id, queue_id = group_queue
            if self.indexes.topics.by_id(topic_id) is None:
                self.consumers.state.forget_topic(topic_id)
            else:
                self.consumers.state.clamp(group_queue, self.queues.end((topic_id, queue_id)))

    # -- writing and reading ----------------------------------------------------------------------

    def write(self) -> CommitLog:
        """The right to append, for a `with` block. No sync is waited for in it: `finish` comes after."""
        return self.writer

    def read(self) -> AbstractContextManager[object]:
        """The writer lock, for a `with` block: the indexes do not change in it."""
        return self.writer.lock

    def finish(self, appended: Appended | None) -> None:
        """Return when the frame, if there is one, may be acknowledged and its queue rows are visible."""
        if appended is not None:
            self._commit.wait(appended.end)
            self._publisher.publish()

    def finish_written(self) -> None:
        """Return when every frame appended so far may be acknowledged and is visible."""
        self._commit.wait(self.log.written_end)
        self._publisher.publish()

    def finish_all(self) -> int:
        """Make everything appended so far safe and visible, whatever the durability; returns the end."""
        end = self.log.written_end
        self._commit.wait_synced(end)
        self._publisher.publish()
        return end

    def publish(self) -> None:
        """Make visible what may be acknowledged and was not, because a disk was full."""
        self._publisher.publish()

    def safe_seq(self) -> int:
        """Every seq below this one survives a power cut; the pipeline reads no further."""
        return self._publisher.safe_seq()

    @property
    def sync_durations(self) -> Histogram:
        """How long the syncs of the commit log took."""
        return self._commit.sync_durations

    def pending_near(self) -> I64:
        """Seqs of the near messages that still wait. Call under the lock."""
        return self.indexes.pending_near()

    @property
    def totals(self) -> Totals:
        return self.indexes.totals

    def scan_pending(
        self,
        topic_id: int | None,
        from_ms: int,
        to_ms: int,
        from_seq: int = 0,
        to_seq: int = SEQ_MAX,
    ) -> Iterator[tuple[I64, Rows]]:
        """Seqs and entries of what is pending and due in `[from_ms, to_ms)`, of seqs in `[from_seq, to_seq)`.

        In order of seq, a bounded part at a time: without the lock, each part is as it was at some moment.
        """
        ledger = self.ledger
        first = max(from_seq, ledger.head_seq)
        while first < min(to_seq, ledger.next_seq):
            with self.read():
                first = max(first, ledger.head_seq)
                end = max(first, min(to_seq, ledger.next_seq, first + _SCAN_ROWS))
                wanted = ledger.range_states(first, end) == State.PENDING
                rows = self.entries.read(first, end, wanted)
            # A row never changes, so the lock is not needed for looking at it.
            wanted &= (rows["deliver_at_ms"] >= from_ms) & (rows["deliver_at_ms"] < to_ms)
            if topic_id is not None:
                wanted &= rows["topic_id"] == topic_id
            chosen = np.flatnonzero(wanted)
            if len(chosen):
                yield first + chosen, rows[chosen]
            first = end

    # -- keeping ----------------------------------------------------------------------------------

    def look_for_room(self) -> None:
        """Fill up what is kept back, see whether sends can be taken again, and say if they soon cannot."""
        self.ballast.fill()
        with self.read():
            self.log.pool.look_again()
            self.disk_space.look()

    @property
    def bytes_since_checkpoint(self) -> int:
        return self.log.written_end - self._checkpoint_offset

    def checkpoint(self) -> None:
        """Save the derived state, so that opening has less to read. A full disk puts it off."""
        with self.upkeep_lock:
            try:
                self._save_checkpoint()
            except DiskFullError:
                return

    def _save_checkpoint(self) -> None:
        """Under the lock it is only noted how things are: all that takes long goes on beside the writer."""
        self._move_near_floor()
        with self.read():
            self.indexes.move_level_floor()
            noted = note_indexes(self.indexes, self.log.written_end)
        content = replace(noted, origin=origin_of(self.log, noted.offset)).encode()
        self.finish_all()
        # What is in memory is read from the log again at the next opening. A damaged frame could not be.
        damaged = self.damaged.since(self.log.head)
        self._find_upkeep.save(is_needed=any(frame.offset >= self.indexes.find.covers for frame in damaged))
        self.consumers.save(noted.offset)
        self._sync_entries()
        self.queues.sync()
        self._checkpoint.save_parts(content, sync=True)
        self._checkpoint_offset = noted.offset

    def look_after_find(self, scrub_bytes: int = SCRUB_BYTES) -> bool:
        """Verify a part of the find index, or derive again a part that was damaged; True: more is lost."""
        with self.upkeep_lock:
            return self._find_upkeep.step(scrub_bytes)

    def _move_near_floor(self) -> None:
        end_seq = self.indexes.ledger.next_seq
        has_more = True
        while has_more:
            with self.read():
                has_more = self.indexes.move_near_floor(end_seq, _FLOOR_ROWS)

    def _sync_entries(self) -> None:
        entries = self.indexes.entries
        with self.read():
            begun = entries.begin_sync()
        try:
            begun.run()
        except BaseException:
            with self.read():
                entries.undo_sync(begun)
            raise

    def value_below(self, now_ms: int) -> int:
        """Bytes below this log offset are older than half the retention: release those by value."""
        below = self.log.head
        for start in self.log.segment_starts()[1:]:
            begun_at_ms = self._begun_at_ms(start)
            if begun_at_ms is None:
                continue
            if begun_at_ms > now_ms - self.settings.retention_ms // 2:
                break
            below = start
        return below

    def _begun_at_ms(self, segment_start: int) -> int | None:
        """When a segment was begun; None if its base frame is damaged."""
        known = self._begun.get(segment_start)
        if known is None:
            frame = self.log.intact_frame(segment_start)
            known = self._begun[segment_start] = frame.stamp_ms if frame is not None else None
        return known

    # -- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything safe, take a checkpoint and let go of the files."""
        self.finish_all()
        self.checkpoint()
        self.release_files()

    def release_files(self) -> None:
        """Let go of the files without writing anything."""
        self.writer.close()
        self.log.close()
        self.consumers.close()
        self.indexes.entries.close()
        self.indexes.find.close()
        self.queues.close()
