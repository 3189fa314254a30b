"""The commit log's one writer: every change of the truth is a frame appended here.

Owns the writer lock and the order *plan, append, apply*. A frame is planned against the indexes under the
lock (seqs, queue offsets, what is pending), appended, and applied by reading it back: the very code that
replays the log after a crash. (Plain rows are applied by that code too, from the columns they were written
from.) Callers then `finish` it: wait for the sync, publish (publishing.py), wake consumers.

Invariants:
- frames are applied in log order, each once;
- a frame names only seqs that are pending when it is appended;
- if an append fails half-way, or applying fails after it, the store refuses all further work and reports it
  (`on_fault`): only opening it again can find out what is true.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BrokerClosedError, StorageError, UnknownTopicError
from tidemill.core.frozen import frozen
from tidemill.core.histogram import Histogram
from tidemill.core.model import NO_OFFSET, NO_TIME_MS, StoredMessage
from tidemill.log.arrays import I64, U8, U16, Flags, Rows, picked
from tidemill.log.disk import Bytes
from tidemill.log.frame import PLAIN_FORMAT
from tidemill.log.group_commit import GroupCommit
from tidemill.log.segments import SegmentedLog
from tidemill.store.disk_space import DiskSpace
from tidemill.store.formats.frames import (
    Cancel,
    End,
    Half,
    Kind,
    ReEnter,
    ReEnterReason,
    SendBack,
    Settlement,
    TopicChange,
)
from tidemill.store.formats.framing import framed
from tidemill.store.formats.message_format import Section, encode_arrow, encode_rows
from tidemill.store.formats.plain_rows import PlainRows, Written
from tidemill.store.formats.release_frame import release_frame
from tidemill.store.formats.request_format import Request
from tidemill.store.indexes import Indexes
from tidemill.store.open_transactions import OpenHalf
from tidemill.store.publishing import Publisher
from tidemill.store.queue_notifier import QueueNotifier
from tidemill.store.topic_queues import TopicQueues
from tidemill.store.topics import Topic


@frozen
class Appended:
    """A frame that was written: where it is, and the seqs it made (in row order of its timed messages)."""

    offset: int
    end: int
    first_seq: int
    seq_count: int
    queue_offsets: Sequence[int] = ()  # of a put's messages; -1 for those that are not in their queues


class CommitLog:
    """Appends, applies and publishes. All public methods are thread-safe."""

    def __init__(
        self,
        log: SegmentedLog,
        commit: GroupCommit,
        indexes: Indexes,
        queues: TopicQueues,
        disk_space: DiskSpace,
        settle: Callable[[Sequence[Settlement]], None],
        on_fault: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self.lock = threading.RLock()  # protects log appends and all indexes
        self.notifier = QueueNotifier()
        self._safe_lock = threading.Lock()  # protects _safe_seq
        self._log = log
        self._commit = commit
        self._indexes = indexes
        self._disk_space = disk_space
        self._on_fault = on_fault
        self._publisher = Publisher(commit, queues, settle, self.notifier)
        self._seq_ends: deque[tuple[int, int]] = deque()  # frame end, next seq after it; not yet known safe
        self._safe_seq = indexes.ledger.next_seq
        self._broken: BaseException | None = None
        self._is_closed = False

    @property
    def end(self) -> int:
        return self._log.written_end

    @property
    def sync_durations(self) -> Histogram:
        """How long the syncs of the log took."""
        return self._commit.sync_durations

    def safe_seq(self) -> int:
        """Every seq below this one survives a power cut; the pipeline reads no further."""
        with self._safe_lock:
            while self._seq_ends and self._seq_ends[0][0] <= self._log.synced_end:
                _, self._safe_seq = self._seq_ends.popleft()
            return self._safe_seq

    # -- messages ---------------------------------------------------------------------------------

    def put(
        self, messages: Sequence[StoredMessage], now_ms: int, *, more_bytes: Sequence[int] = ()
    ) -> Appended:
        """Append messages as rows, all or, on a full disk, none; the untimed ones go to their queues.

        `more_bytes` are payloads that the caller appends right after, under the same lock: there is space for
        those as well, or nothing is written.
        """
        with self.lock:
            offsets = self._offsets_of(messages)
            sections = self._sections(messages, offsets)
            self.reserve([len(section) for section in sections] + list(more_bytes), len(messages))
            first_seq = self._indexes.ledger.next_seq
            done = [self._append(Kind.MESSAGES, [section], now_ms) for section in sections]
            seq_count = self._indexes.ledger.next_seq - first_seq
            return Appended(done[0].offset, done[-1].end, first_seq, seq_count, offsets)

    def put_plain(self, rows: PlainRows) -> Appended:
        """Append plain messages as rows of one frame; the untimed ones go to their queues.

        The caller holds the lock and has seen that their topics are there.
        """
        with self.lock:
            offsets = None
            if not rows.are_all_timed:
                offsets = self._plan(*rows.places())
            written = rows.written(NO_OFFSET if offsets is None else offsets, self._indexes.ledger.next_seq)
            self.reserve([len(written.data)], len(rows))
            done = self._append(Kind.MESSAGES, [written.data], rows.stored_at_ms, written=written)
            return done if offsets is None else replace(done, queue_offsets=offsets.tolist())

    def reserve(self, payload_bytes: Sequence[int], message_count: int) -> None:
        """Return if frames with these payloads can be appended next, all of them; else `DiskFullError`.

        Call under the lock. `message_count` is how many messages they hold.
        """
        self._disk_space.reserve(payload_bytes, message_count)

    def put_batch(self, batch: pa.RecordBatch, now_ms: int) -> Appended:
        """Append an Arrow batch of the message schema as it is; queue offsets are filled in."""
        with self.lock:
            topic_ids = batch.column("topic_id").to_numpy()
            queue_ids = batch.column("queue_id").to_numpy()
            self._require_topics(np.unique(topic_ids).tolist())
            offsets = self._plan(topic_ids, queue_ids, batch.column("deliver_at_ms").to_numpy())
            column = batch.schema.get_field_index("queue_offset")
            batch = batch.set_column(column, batch.schema.field(column), pa.array(offsets, pa.int64()))
            parts = encode_arrow(batch, self._indexes.ledger.next_seq)
            self.reserve([sum(len(part) for part in parts)], batch.num_rows)
            return self._append(Kind.MESSAGES, parts, now_ms)

    def send_back(
        self, messages: Sequence[StoredMessage], settles: Sequence[Settlement], now_ms: int
    ) -> Appended:
        """Append messages that take the place of deliveries, settling those with the same frame."""
        with self.lock:
            parts = self._rows(messages)
            section = Section(memoryview(parts[0]))
            frame = SendBack(settles, section, parts)
            return self._append(Kind.SEND_BACK, frame.parts(), now_ms, reserved=True)

    def _rows(self, messages: Sequence[StoredMessage]) -> list[Bytes]:
        """Messages of one frame, encoded."""
        return [encode_rows(messages, self._offsets_of(messages), self._indexes.ledger.next_seq)]

    def _sections(self, messages: Sequence[StoredMessage], offsets: Sequence[int]) -> list[bytes]:
        """Messages of as many frames as they need, encoded as if appended one frame after the other."""
        first_seq, start = self._indexes.ledger.next_seq, 0
        sections = []
        for part in framed(messages):
            end = start + len(part)
            sections.append(encode_rows(part, offsets[start:end], first_seq))
            first_seq += sum(m.deliver_at_ms != NO_TIME_MS for m in part)
            start = end
        return sections

    def _offsets_of(self, messages: Sequence[StoredMessage]) -> list[int]:
        """Queue offsets of the untimed messages, -1 for the timed ones. All of their topics must exist."""
        self._require_topics({m.topic_id for m in messages})
        if all(m.deliver_at_ms != NO_TIME_MS for m in messages):
            return [-1] * len(messages)
        topic_ids = np.array([m.topic_id for m in messages], np.int64)
        queue_ids = np.array([m.queue_id for m in messages], np.int64)
        deliver_at = np.array([m.deliver_at_ms for m in messages], np.int64)
        offsets: list[int] = self._plan(topic_ids, queue_ids, deliver_at).tolist()
        return offsets

    def _require_topics(self, topic_ids: Sequence[int] | set[int]) -> None:
        for topic_id in topic_ids:
            if self._indexes.topics.by_id(topic_id) is None:
                raise UnknownTopicError("the topic was deleted meanwhile; create it again or send to another")

    def _plan(self, topic_ids: I64, queue_ids: I64, deliver_at_ms: I64) -> I64:
        """Queue offsets of the messages that are not timed, -1 for those that are."""
        offsets = np.full(len(topic_ids), -1, np.int64)
        direct = (deliver_at_ms == NO_TIME_MS).nonzero()[0]
        if not len(direct):
            return offsets
        partitions = self._indexes.topics.partitions(topic_ids[direct], queue_ids[direct])
        offsets[direct] = self._indexes.topics.plan_offsets(partitions)
        return offsets

    # -- settling ---------------------------------------------------------------------------------

    def release(
        self,
        seqs: I64,
        rows: Rows,
        via: U8,
        trips: U16,
        now_ms: int,
        value_messages: Sequence[StoredMessage],
        is_value: Flags,
    ) -> Appended:
        """Put distinct, due seqs with their entries `rows` into their queues, in the order given.

        The caller holds the lock and has seen that they are pending. `value_messages` are the messages of the
        rows where `is_value`, whose bytes go along.
        """
        with self.lock:
            assert (rows["deliver_at_ms"] <= now_ms).all()
            topics = self._indexes.topics
            frame, order = release_frame(topics, seqs, rows, via, trips, value_messages, is_value)
            return self._append(
                Kind.RELEASE,
                frame.parts(),
                now_ms,
                reserved=True,
                version=frame.version,
                released=picked(rows, order),
            )

    def cancel(self, seqs: I64, now_ms: int, request: Request | None = None) -> Appended | None:
        """Cancel distinct seqs; the caller holds the lock and has seen that they are pending."""
        with self.lock:
            if not len(seqs):
                return None
            assert self._indexes.ledger.pending_mask(seqs).all()
            topic_ids, counts = np.unique(self._indexes.entries.take(seqs)["topic_id"], return_counts=True)
            frame = Cancel(seqs, topic_ids, counts.astype(np.uint32), request)
            return self._append(Kind.CANCEL, frame.parts(), now_ms, reserved=True, version=frame.version)

    def re_enter(
        self,
        old_seqs: I64,
        messages: Sequence[StoredMessage],
        reason: ReEnterReason,
        now_ms: int,
        arrivals: Sequence[int],
        request: Request | None = None,
    ) -> Appended:
        """Append messages again under new seqs; the caller holds the lock and saw the old ones pending.

        `arrivals` says of each when it arrived, as in `original_order.py`.
        """
        with self.lock:
            assert self._indexes.ledger.pending_mask(old_seqs).all()
            parts: list[Bytes] = [encode_rows(messages, arrivals, self._indexes.ledger.next_seq)]
            frame = ReEnter(reason, old_seqs, Section(memoryview(parts[0])), parts, request)
            is_upkeep, parts = reason is ReEnterReason.RETENTION, frame.parts()
            return self._append(Kind.RE_ENTER, parts, now_ms, reserved=is_upkeep, version=frame.version)

    # -- transactions and topics ------------------------------------------------------------------

    def put_halves(
        self, messages: Sequence[StoredMessage], now_ms: int, replaces: Sequence[int] = ()
    ) -> Appended:
        """Append first halves of transactions (or, with `replaces`, move open ones to the tail)."""
        with self.lock:
            if not replaces:
                self._disk_space.require_kept_back()
            self._require_topics({m.topic_id for m in messages})
            parts: list[Bytes] = [encode_rows(messages, [-1] * len(messages), 0)]
            old = np.array(replaces or [0] * len(messages), np.uint64)
            frame = Half(old, Section(memoryview(parts[0])), parts)
            return self._append(Kind.HALF, frame.parts(), now_ms, reserved=bool(replaces))

    def end_half(self, half: OpenHalf, message: StoredMessage | None, now_ms: int) -> Appended:
        """End a transaction: commit with its message as it shall be stored, roll back with None."""
        with self.lock:
            parts = self._rows([message]) if message is not None else []
            section = Section(memoryview(parts[0])) if parts else None
            return self._append(Kind.END, End(half.place, section, parts).parts(), now_ms, reserved=True)

    def change_topic(
        self, topic: Topic, now_ms: int, *, is_deleted: bool = False, cancel_below_seq: int = 0
    ) -> Appended:
        with self.lock:
            # On a full disk no topic is made for a send that will be refused; dead letters are still buried.
            is_reserved = self._indexes.topics.by_id(topic.id) is not None or topic.name.startswith("%")
            cancelled = self._indexes.due_counts.pending(topic.id) if cancel_below_seq else 0
            change = TopicChange(topic.as_dict(), is_deleted, cancel_below_seq, cancelled)
            return self._append(Kind.TOPIC, change.parts(), now_ms, reserved=is_reserved)

    # -- the order --------------------------------------------------------------------------------

    def copy(self, kind: int, parts: Sequence[Bytes], stamp_ms: int, version: int) -> Appended:
        """Append a frame of another log as it is: its seqs and queue offsets are the next ones here."""
        with self.lock:
            return self._append(kind, parts, stamp_ms, reserved=True, version=version)

    def _append(
        self,
        kind: int,
        parts: Sequence[Bytes],
        now_ms: int,
        *,
        reserved: bool = False,
        version: int = PLAIN_FORMAT,
        written: Written | None = None,
        released: Rows | None = None,
    ) -> Appended:
        if self._is_closed:
            raise BrokerClosedError("the broker is closed")
        if self._broken is not None:
            raise BrokerClosedError("the store stopped after a fault; open it again") from self._broken
        first_seq = self._indexes.ledger.next_seq
        try:
            offset = self._log.append(kind, parts, now_ms, reserved=reserved, version=version)
        except StorageError as fault:  # not a full disk: that is met before anything is written
            self._break(fault)
            raise
        end = self._log.written_end
        try:
            if written is None:
                effects = self._indexes.apply(self._log.appended_frame(offset), released)
            else:
                effects = self._indexes.apply_written(written, offset, end, now_ms)
        except BaseException as fault:
            self._break(fault)
            raise
        self._publisher.add(end, effects)
        next_seq = self._indexes.ledger.next_seq
        if next_seq > first_seq:
            self._seq_ends.append((end, next_seq))
        return Appended(offset, end, first_seq, next_seq - first_seq)

    def _break(self, fault: BaseException) -> None:
        self._broken = fault
        self._on_fault(fault)

    def finish(self, appended: Appended | None) -> None:
        """Return when the frame may be acknowledged and its queue rows are visible."""
        if appended is not None:
            self._commit.wait(appended.end)
            self.publish()

    def finish_written(self) -> None:
        """Return when every frame appended so far may be acknowledged and is visible."""
        self._commit.wait(self._log.written_end)
        self.publish()

    def finish_all(self) -> int:
        """Make everything appended so far safe and visible; returns the end."""
        end = self._log.written_end
        self._commit.wait_synced(end)
        self.publish()
        return end

    def close(self) -> None:
        """Refuse every append from now on; another process owns the files now."""
        with self.lock:
            self._is_closed = True

    def publish(self) -> None:
        """Write the queue rows of every frame that may be acknowledged, in log order."""
        try:
            self._publisher.publish()
        except StorageError as fault:  # not a full disk: that passes, and the next call tries again
            self._break(fault)
            raise
