"""The commit log's one writer: every change of the truth is a frame appended here.

Owns the writer lock and the order *plan, append, apply*. `MessageStore.write` gives it out, to be held in a
`with` block. A frame is planned under the lock (seqs, queue offsets, what is pending) against the indexes,
which are attributes here, appended, and applied by reading it back: the very code that replays the log after
a crash. (Plain rows are applied by that code too, from the columns they were written from.) Nothing here
waits for a sync: `MessageStore.finish` does, without the lock (publishing.py).

Invariants:
- all methods but `close` are called with the lock held;
- frames are applied in log order, each once;
- a frame names only seqs that are pending when it is appended;
- if an append fails half-way, or applying fails after it, the store refuses all further work and reports it
  (`on_fault`): only opening it again can find out what is true.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BrokerClosedError, StorageError, UnknownTopicError
from tidemill.core.frozen import frozen
from tidemill.core.model import NO_OFFSET, NO_TIME_MS, StoredMessage
from tidemill.log.arrays import I64, U8, U16, Flags, Rows, picked
from tidemill.log.disk import Bytes
from tidemill.log.frame import PLAIN_FORMAT
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
from tidemill.store.index_access import IndexAccess
from tidemill.store.indexes import Indexes
from tidemill.store.open_transactions import OpenHalf
from tidemill.store.publishing import Publisher
from tidemill.store.topics import Topic


@frozen
class Appended:
    """A frame that was written: where it is, and the seqs it made (in row order of its timed messages)."""

    offset: int
    end: int
    first_seq: int
    seq_count: int
    queue_offsets: Sequence[int] = ()  # of a put's messages; -1 for those that are not in their queues


class CommitLog(IndexAccess):
    """Plans, appends and applies frames, for the one thread that has entered it."""

    def __init__(
        self,
        log: SegmentedLog,
        indexes: Indexes,
        disk_space: DiskSpace,
        publisher: Publisher,
    ) -> None:
        self.lock = threading.RLock()  # protects log appends and all indexes
        super().__init__(indexes)
        self._log = log
        self._disk_space = disk_space
        self._publisher = publisher
        self._is_closed = False

    def __enter__(self) -> CommitLog:
        self.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    @property
    def end(self) -> int:
        return self._log.written_end

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
            first_seq = self.ledger.next_seq
            done = [self._append(Kind.MESSAGES, [section], now_ms) for section in sections]
            seq_count = self.ledger.next_seq - first_seq
            return Appended(done[0].offset, done[-1].end, first_seq, seq_count, offsets)

    def put_plain(self, rows: PlainRows) -> Appended:
        """Append plain messages as rows of one frame; the untimed ones go to their queues.

        The caller holds the lock and has seen that their topics are there.
        """
        with self.lock:
            offsets = None
            if not rows.are_all_timed:
                offsets = self._plan(*rows.places())
            written = rows.written(NO_OFFSET if offsets is None else offsets, self.ledger.next_seq)
            self.reserve([len(written.data)], len(rows))
            done = self._append(Kind.MESSAGES, [written.data], rows.stored_at_ms, written=written)
            return done if offsets is None else replace(done, queue_offsets=offsets.tolist())

    def reserve(self, payload_bytes: Sequence[int], message_count: int) -> None:
        """Return if frames with these payloads can be appended next, all of them; else `DiskFullError`.

        `message_count` is how many messages they hold.
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
            parts = encode_arrow(batch, self.ledger.next_seq)
            self.reserve([sum(len(part) for part in parts)], batch.num_rows)
            return self._append(Kind.MESSAGES, parts, now_ms)

    def send_back(
        self, messages: Sequence[StoredMessage], settles: Sequence[Settlement], now_ms: int
    ) -> Appended:
        """Append messages that take the place of deliveries, settling those with the same frame."""
        parts = self._rows(messages)
        section = Section(memoryview(parts[0]))
        frame = SendBack(settles, section, parts)
        return self._append(Kind.SEND_BACK, frame.parts(), now_ms, reserved=True)

    def _rows(self, messages: Sequence[StoredMessage]) -> list[Bytes]:
        """Messages of one frame, encoded."""
        return [encode_rows(messages, self._offsets_of(messages), self.ledger.next_seq)]

    def _sections(self, messages: Sequence[StoredMessage], offsets: Sequence[int]) -> list[bytes]:
        """Messages of as many frames as they need, encoded as if appended one frame after the other."""
        first_seq, start = self.ledger.next_seq, 0
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
            if self.topics.by_id(topic_id) is None:
                raise UnknownTopicError("the topic was deleted meanwhile; create it again or send to another")

    def _plan(self, topic_ids: I64, queue_ids: I64, deliver_at_ms: I64) -> I64:
        """Queue offsets of the messages that are not timed, -1 for those that are."""
        offsets = np.full(len(topic_ids), -1, np.int64)
        direct = (deliver_at_ms == NO_TIME_MS).nonzero()[0]
        if not len(direct):
            return offsets
        partitions = self.topics.partitions(topic_ids[direct], queue_ids[direct])
        offsets[direct] = self.topics.plan_offsets(partitions)
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

        The caller has seen that they are pending. `value_messages` are the messages of the
        rows where `is_value`, whose bytes go along.
        """
        assert (rows["deliver_at_ms"] <= now_ms).all()
        topics = self.topics
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
        """Cancel distinct seqs; the caller has seen that they are pending."""
        if not len(seqs):
            return None
        assert self.ledger.pending_mask(seqs).all()
        topic_ids, counts = np.unique(self.entries.take(seqs)["topic_id"], return_counts=True)
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
        """Append messages again under new seqs; the caller has seen that the old ones are pending.

        `arrivals` says of each when it arrived, as in `original_order.py`.
        """
        assert self.ledger.pending_mask(old_seqs).all()
        parts: list[Bytes] = [encode_rows(messages, arrivals, self.ledger.next_seq)]
        frame = ReEnter(reason, old_seqs, Section(memoryview(parts[0])), parts, request)
        is_upkeep, parts = reason is ReEnterReason.RETENTION, frame.parts()
        return self._append(Kind.RE_ENTER, parts, now_ms, reserved=is_upkeep, version=frame.version)

    # -- transactions and topics ------------------------------------------------------------------

    def put_halves(
        self, messages: Sequence[StoredMessage], now_ms: int, replaces: Sequence[int] = ()
    ) -> Appended:
        """Append first halves of transactions (or, with `replaces`, move open ones to the tail)."""
        if not replaces:
            self._disk_space.require_kept_back()
        self._require_topics({m.topic_id for m in messages})
        parts: list[Bytes] = [encode_rows(messages, [-1] * len(messages), 0)]
        old = np.array(replaces or [0] * len(messages), np.uint64)
        frame = Half(old, Section(memoryview(parts[0])), parts)
        return self._append(Kind.HALF, frame.parts(), now_ms, reserved=bool(replaces))

    def end_half(self, half: OpenHalf, message: StoredMessage | None, now_ms: int) -> Appended:
        """End a transaction: commit with its message as it shall be stored, roll back with None."""
        parts = self._rows([message]) if message is not None else []
        section = Section(memoryview(parts[0])) if parts else None
        return self._append(Kind.END, End(half.place, section, parts).parts(), now_ms, reserved=True)

    def change_topic(
        self, topic: Topic, now_ms: int, *, is_deleted: bool = False, cancel_below_seq: int = 0
    ) -> Appended:
        # On a full disk no topic is made for a send that will be refused; dead letters are still buried.
        is_reserved = self.topics.by_id(topic.id) is not None or topic.name.startswith("%")
        cancelled = self.due_counts.pending(topic.id) if cancel_below_seq else 0
        change = TopicChange(topic.as_dict(), is_deleted, cancel_below_seq, cancelled)
        return self._append(Kind.TOPIC, change.parts(), now_ms, reserved=is_reserved)

    # -- the order --------------------------------------------------------------------------------

    def copy(self, kind: int, parts: Sequence[Bytes], stamp_ms: int, version: int) -> Appended:
        """Append a frame of another log as it is: its seqs and queue offsets are the next ones here."""
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
        if self._publisher.fault is not None:
            raise BrokerClosedError(
                "the store stopped after a fault; open it again"
            ) from self._publisher.fault
        first_seq = self.ledger.next_seq
        try:
            offset = self._log.append(kind, parts, now_ms, reserved=reserved, version=version)
        except StorageError as fault:  # not a full disk: that is met before anything is written
            self._publisher.stop(fault)
            raise
        end = self._log.written_end
        try:
            if written is None:
                effects = self.indexes.apply(self._log.appended_frame(offset), released)
            else:
                effects = self.indexes.apply_written(written, offset, end, now_ms)
        except BaseException as fault:
            self._publisher.stop(fault)
            raise
        next_seq = self.ledger.next_seq
        self._publisher.add(end, effects, next_seq if next_seq > first_seq else 0)
        return Appended(offset, end, first_seq, next_seq - first_seq)

    def close(self) -> None:
        """Refuse every append from now on; another process owns the files now."""
        with self.lock:
            self._is_closed = True
