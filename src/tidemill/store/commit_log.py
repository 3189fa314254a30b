"""The commit log's one writer: every change of the truth is a frame appended here.

Owns the writer lock and the order *plan, append, apply*. `MessageStore.write` gives it out, to be held in a
`with` block. A frame is planned under the lock (seqs, queue offsets, what is pending) against the indexes,
which are attributes here, appended, and applied by reading it back: the very code that replays the log after
a crash. (Messages just written are applied by that code too, from the columns they were written from.)
Nothing here waits for a sync: `MessageStore.finish` does, without the lock (publishing.py).

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

import numpy as np

from tidemill.core.errors import BrokerClosedError, StorageError, UnknownTopicError
from tidemill.core.frozen import frozen
from tidemill.core.model import NO_OFFSET, NO_TIME_MS, StoredMessage
from tidemill.log.arrays import I64, U8, U16, Flags, Rows, each_of, picked
from tidemill.log.disk import Bytes
from tidemill.log.frame import PLAIN_FORMAT
from tidemill.log.segments import SegmentedLog
from tidemill.store.disk_space import DiskSpace
from tidemill.store.formats.arrow import encode_arrow
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
from tidemill.store.formats.message_format import Section
from tidemill.store.formats.new_messages import NewMessages, Written
from tidemill.store.formats.release_frame import release_frame
from tidemill.store.formats.request_format import Request
from tidemill.store.formats.rows import encode_messages, encode_rows
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

    # -- messages ---------------------------------------------------------------------------------

    def append(self, messages: NewMessages, now_ms: int, *, more_bytes: Sequence[int] = ()) -> Appended:
        """Append messages, all or, on a full disk, none; the untimed ones go to their queues.

        The caller has seen that their topics are there. `more_bytes` are payloads that it appends right
        after: there is space for those as well, or nothing is written.
        """
        offsets = None if messages.are_all_timed else self._plan(*messages.places())
        frames = self._encoded(messages, NO_OFFSET if offsets is None else offsets)
        self.reserve([frame.size for frame in frames] + list(more_bytes), messages.count)
        done = [self._append(Kind.MESSAGES, frame.parts, now_ms, written=frame) for frame in frames]
        if len(done) == 1 and offsets is None:
            return done[0]
        first, seq_count = done[0], sum(one.seq_count for one in done)
        queue_offsets = () if offsets is None else offsets.tolist()
        return Appended(first.offset, done[-1].end, first.first_seq, seq_count, queue_offsets)

    def reserve(self, payload_bytes: Sequence[int], message_count: int) -> None:
        """Return if frames with these payloads can be appended next, all of them; else `DiskFullError`.

        `message_count` is how many messages they hold.
        """
        self._disk_space.reserve(payload_bytes, message_count)

    def send_back(self, messages: NewMessages, settles: Sequence[Settlement], now_ms: int) -> Appended:
        """Append messages that take the place of deliveries, settling those with the same frame."""
        section, parts = self._section(messages)
        return self._append(Kind.SEND_BACK, SendBack(settles, section, parts).parts(), now_ms, reserved=True)

    def _section(self, messages: NewMessages) -> tuple[Section, list[Bytes]]:
        """Messages of a frame that has more in it."""
        self._require_topics(set(each_of(messages.topic_ids, messages.count).tolist()))
        (written,) = self._encoded(messages, self._plan(*messages.places()))
        return Section(memoryview(written.parts[0])), written.parts

    def _encoded(self, messages: NewMessages, queue_offsets: I64 | int) -> list[Written]:
        """Messages of as many frames as they need, encoded as if appended one frame after the other."""
        encode, first_seq = encode_arrow if messages.is_arrow else encode_rows, self.ledger.next_seq
        if not messages.bounds:
            return [encode(messages, queue_offsets, first_seq)]
        frames = []
        for start, end in messages.bounds:
            rows = np.arange(start, end)
            offsets = queue_offsets if isinstance(queue_offsets, int) else queue_offsets[rows]
            frames.append(encode(messages.rows(rows), offsets, first_seq))
            first_seq += len(frames[-1].timed)
        return frames

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
        placements: U16,
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
        frame, order = release_frame(topics, seqs, rows, via, placements, value_messages, is_value)
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
        parts: list[Bytes] = [encode_messages(messages, arrivals, self.ledger.next_seq)]
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
        parts: list[Bytes] = [encode_messages(messages, [-1] * len(messages), 0)]
        old = np.array(replaces or [0] * len(messages), np.uint64)
        frame = Half(old, Section(memoryview(parts[0])), parts)
        return self._append(Kind.HALF, frame.parts(), now_ms, reserved=bool(replaces))

    def end_half(self, half: OpenHalf, message: NewMessages | None, now_ms: int) -> Appended:
        """End a transaction: commit with its message as it shall be stored, roll back with None."""
        section, parts = (None, []) if message is None else self._section(message)
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
