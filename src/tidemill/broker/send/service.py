"""The send verb: one path for requests, drafts and tables, from admission to the answer after the sync.

Owns the order *admit, plan, append, wait, hand over, answer*. Check and append happen under the writer lock;
an answer leaves only after its frame (or the frame of the message it repeats) is safe.

A table is checked whole, and space is reserved for all of it, before its first row is stored. Then it is
stored frame by frame, each a send of its own, and others may send between two frames: where a later frame is
refused, the error says how many rows are stored, `PartlyStoredError` (the disk is full) with their results.

Invariant: a send that meets a full disk leaves nothing behind, however many frames it would have been: space
for all of them is set aside before the first is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.send.admit import admit, admit_drafts
from tidemill.broker.send.admit_table import admit_table, check_columns, texts
from tidemill.broker.send.answers import Answer, Answers, TableResult, table_result
from tidemill.broker.send.batch import SendBatch
from tidemill.broker.send.batch_bounds import check_bytes, check_whole, decoded_bytes, framed
from tidemill.broker.send.clamped_levels import ClampedLevels
from tidemill.broker.send.plan import Plan, Planner, raise_first
from tidemill.broker.send.resolve import FRESH, REFUSED, Resolver
from tidemill.core.arguments import require_kind
from tidemill.core.byte_budget import ByteBudget
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import BodyTooLargeError, BusyError, DiskFullError, PartlyStoredError, RequestError
from tidemill.core.limits import FRAME_BYTES_MAX
from tidemill.core.model import NO_OFFSET, NO_QUEUE, NO_SEQ, NO_TIME_MS, Draft, SendResult, StoredMessage
from tidemill.core.send_batch import SendColumns, join_columns
from tidemill.log.arrays import I64, all_of, each_of
from tidemill.release.releaser import Releaser
from tidemill.store.commit_log import Appended, CommitLog
from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.new_messages import NewMessages
from tidemill.store.formats.texts import Texts
from tidemill.store.message_store import MessageStore
from tidemill.store.upkeep.moving import MovedMessages, move_bounds, move_payloads, reschedule


class SendService:
    """The send verb. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        releaser: Releaser,
        settings: BrokerSettings,
        broker_id: str,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._releaser = releaser
        self._settings = settings
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._wake = wake
        self._planner = Planner(store, topics, releaser, settings, broker_id)
        self.in_flight = ByteBudget(settings.in_flight_bytes_max)
        self.clamped_levels = ClampedLevels()

    @property
    def in_flight_bytes(self) -> int:
        """Bodies of sends that are not answered yet."""
        return self.in_flight.held

    # -- requests and drafts ----------------------------------------------------------------------

    def send_columns(
        self, requests: Sequence[SendColumns], errors: Mapping[int, RequestError] | None = None
    ) -> list[Answers]:
        """Store what several requests ask for; each gets the answers to its own messages, in order.

        `errors`: of messages that are not to be stored, by their number.
        """
        columns = requests[0] if len(requests) == 1 else join_columns(requests)
        with self.in_flight.hold(sum(map(len, columns.bodies))):
            answers = self._store_batch(admit(columns, self._settings, self._now_ms(), errors=errors))
        if len(requests) == 1:
            return [answers]
        return [answers.part(at, end) for at, end in pairwise(accumulate(map(len, requests), initial=0))]

    def send_drafts(
        self, drafts: Sequence[Draft], *, creates_topics: bool = True, is_all_or_none: bool = False
    ) -> list[Answer]:
        """Store the drafts that are right, each with its own answer; or all of them or none."""
        require_kind("drafts", drafts, (list, tuple), "a list of Draft")
        with self.in_flight.hold(_body_bytes(drafts)):
            batch = admit_drafts(drafts, self._settings, self._now_ms())
            answers = self._store_batch(batch, creates_topics=creates_topics, is_all_or_none=is_all_or_none)
        return answers.results(self._broker_id, [getattr(draft, "topic", "") for draft in drafts])

    def send(self, drafts: Sequence[Draft], *, creates_topics: bool = True) -> list[SendResult]:
        """Store all drafts or, if one of them is wrong, none."""
        return self.send_drafts(drafts, creates_topics=creates_topics, is_all_or_none=True)  # type: ignore[return-value]

    # -- tables -----------------------------------------------------------------------------------

    def send_table(self, table: pa.Table | pa.RecordBatch, topic_name: str | None) -> TableResult:
        """Check the whole table, then store it frame by frame."""
        require_kind("table", table, (pa.Table, pa.RecordBatch), "an Arrow table or batch")
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        check_columns(table.column_names, topic_name)
        batches = table.to_batches()
        for batch in batches:
            check_bytes(batch)
        with self.in_flight.hold(sum(map(decoded_bytes, batches))):
            return self._send_table([part for batch in batches for part in framed(batch)], topic_name)

    def send_whole(self, batch: pa.RecordBatch, topic_name: str | None) -> TableResult:
        """Store a batch as one frame, so that all of it is there or nothing, whatever happens meanwhile."""
        check_columns(batch.schema.names, topic_name)
        with self.in_flight.hold(check_whole(batch)):
            return self._send_table([batch] if batch.num_rows else [], topic_name)

    def _send_table(self, parts: Sequence[pa.RecordBatch], topic_name: str | None) -> TableResult:
        now_ms = self._now_ms()
        first_rows = list(accumulate((part.num_rows for part in parts), initial=0))
        batches = [
            admit_table(part, topic_name, self._settings, now_ms, first_row)
            for part, first_row in zip(parts, first_rows, strict=False)
        ]
        self._check_whole(batches)
        topics = [_topic_column(part, topic_name) for part in parts]
        done: list[Answers] = []
        for batch, first_row in zip(batches, first_rows, strict=False):
            try:
                done.append(self._store_batch(batch, is_all_or_none=True, first_row=first_row))
            except (RequestError, BusyError) as error:
                if not done:
                    raise
                stored = f"The first {first_row:,} of {first_rows[-1]:,} rows are stored; send the rest again"
                if not isinstance(error, DiskFullError):
                    raise type(error)(f"{error}. {stored}") from None
                result = table_result(self._broker_id, topics[: len(done)], done)
                raise PartlyStoredError(f"{error}. {stored} when there is space", result) from error
        return table_result(self._broker_id, topics, done)

    def _check_whole(self, batches: Sequence[SendBatch]) -> None:
        """Raise unless all frames of a table can be stored, as far as that is known before the first is."""
        sizes = [size for batch in batches for size in batch.frames_at_most()]
        if max(sizes, default=0) > FRAME_BYTES_MAX:  # texts made of numbers, which are longer than these
            raise BodyTooLargeError(
                f"a frame would have {max(sizes)} bytes, the limit is {FRAME_BYTES_MAX}; send fewer rows"
            )
        with self._store.write() as tx:
            for batch in batches:
                raise_first(self._planner.check_topics(batch)[1])
            if batches:
                tx.reserve(sizes, sum(batch.count for batch in batches))

    # -- storing ----------------------------------------------------------------------------------

    def _store_batch(
        self,
        batch: SendBatch,
        *,
        creates_topics: bool = True,
        is_all_or_none: bool = False,
        first_row: int | None = None,
    ) -> Answers:
        """Store what of a batch can be stored; `first_row`: of a table, for what is said about a row."""
        if not batch.count:
            return Answers.refused(0)
        with self._store.write() as tx:
            plan = self._planner.plan(
                tx,
                batch,
                creates_topics=creates_topics,
                is_all_or_none=is_all_or_none,
                first_row=first_row,
            )
            resolved = plan.resolved
            if resolved is None:
                appended = tx.append(plan.messages, batch.now_ms)
            else:
                appended, moved = self._append(tx, plan, batch.now_ms)
        if resolved is None:
            self._store.finish(appended)
        else:
            self._store.finish_written()
            for part in moved:
                self.hand_over(part.deliver_at_ms, part.appended.first_seq, part.flags)
        messages = plan.messages
        if type(messages.flags) is not int or messages.flags:
            self.hand_over_new(messages, appended.first_seq)
        if batch.notes is not None:
            self._count_clamped(batch, plan.rows)
        if resolved is None:
            return _plain_answers(plan, appended, batch.notes)
        return _answers(plan, resolved, appended, moved, batch.notes)

    def _append(self, tx: CommitLog, plan: Plan, now_ms: int) -> tuple[Appended, list[MovedMessages]]:
        """Write what was planned, all or, on a full disk, nothing."""
        store, resolved = self._store, plan.resolved
        assert resolved is not None
        seqs = np.array(list(resolved.moves), np.int64)
        bounds = move_bounds(store, seqs)
        payloads = move_payloads(store, seqs, bounds)
        appended = Appended(0, 0, tx.ledger.next_seq, 0)
        if plan.messages.count:
            appended = tx.append(plan.messages, now_ms, more_bytes=payloads)
        elif payloads:
            tx.reserve(payloads, len(seqs))
        due, near_below_ms = np.array(list(resolved.moves.values())), self.near_below_ms(now_ms)
        return appended, reschedule(store, seqs, due, bounds, near_below_ms, now_ms)

    def _count_clamped(self, batch: SendBatch, rows: I64 | None) -> None:
        assert batch.notes is not None
        which = each_of(0 if batch.which is None else batch.which, batch.count).tolist()
        for row in range(batch.count) if rows is None else rows.tolist():
            if batch.notes[row]:
                self.clamped_levels.add(batch.topics[which[row]], batch.notes[row])

    # -- what other verbs store -------------------------------------------------------------------

    def planned(
        self, messages: Sequence[StoredMessage], now_ms: int, *, in_order: bool = False
    ) -> NewMessages:
        """Messages that the broker itself stores anew, with their flags. Call under the writer lock."""
        return self._planner.planned(messages, now_ms, in_order=in_order)

    def near_below_ms(self, now_ms: int) -> int:
        """Messages that are moved to a time before this one go to the near set."""
        return self._planner.near_below_ms(now_ms)

    def hand_over_new(self, messages: NewMessages, first_seq: int) -> None:
        """Give the near ones of newly stored messages to the releaser."""
        due, flags = (each_of(column, messages.count) for column in (messages.deliver_at_ms, messages.flags))
        self.hand_over(due[messages.timed], first_seq, flags[messages.timed])

    def hand_over(self, deliver_at_ms: I64, first_seq: int, flags: I64) -> None:
        """Give the near ones of these timed messages to the releaser, and wake it if one comes first.

        Those on a level are in their queues already.
        """
        held = (flags & (FLAG_NEAR | FLAG_LEVEL)).nonzero()[0]
        if not len(held):
            return
        near = (flags & FLAG_NEAR).nonzero()[0]
        if len(near):
            self._releaser.add_near(deliver_at_ms[near], first_seq + near)
        next_wake_ms = self._releaser.next_wake_ms
        if next_wake_ms is None or int(deliver_at_ms[held].min()) < next_wake_ms:
            self._wake()


def _body_bytes(drafts: Sequence[Draft]) -> int:
    """Bytes of all bodies; what is no draft counts nothing and is refused when it is looked at."""
    bodies = (getattr(draft, "body", b"") for draft in drafts)
    return sum(len(body) for body in bodies if isinstance(body, bytes | bytearray | memoryview))


def _topic_column(part: pa.RecordBatch, topic_name: str | None) -> pa.Array:
    return texts(part, "topic") if topic_name is None else pa.repeat(pa.scalar(topic_name), part.num_rows)


# -- answers --------------------------------------------------------------------------------------


def _plain_answers(plan: Plan, appended: Appended, notes: Sequence[str] | None) -> Answers:
    """The answers where all rows were stored as they came."""
    messages, first_seq = plan.messages, appended.first_seq
    count = messages.count
    if not appended.queue_offsets:
        return Answers(count, range(first_seq, first_seq + count), plan.due, plan.ids, notes=notes)
    seqs, queues = all_of(NO_SEQ, count), each_of(messages.queue_ids, count)
    seqs[messages.timed] = np.arange(first_seq, first_seq + len(messages.timed))
    queues[messages.timed] = NO_QUEUE
    offsets = np.array(appended.queue_offsets, np.int64)
    return Answers(count, seqs, plan.due, plan.ids, queues, offsets, notes=notes)


def _answers(
    plan: Plan,
    resolved: Resolver,
    appended: Appended,
    moved: Sequence[MovedMessages],
    notes: Sequence[str] | None,
) -> Answers:
    """The answers where some rows were refused, or repeat a message."""
    same_as, rows, count = resolved.same_as, plan.rows, len(resolved.same_as)
    assert rows is not None
    seqs, queues, offsets = (all_of(value, count) for value in (NO_SEQ, NO_QUEUE, NO_OFFSET))
    due = each_of(plan.due, count)
    stored = _plain_answers(plan, appended, None)
    seqs[rows] = stored.seqs
    if stored.queues is not None and stored.offsets is not None:
        queues[rows], offsets[rows] = stored.queues, stored.offsets
    now_at: dict[int, tuple[int, int]] = {}
    for part in moved:
        new_seqs = range(part.appended.first_seq, part.appended.first_seq + len(part.old_seqs))
        pairs = zip(new_seqs, part.deliver_at_ms.tolist(), strict=True)
        now_at.update(zip(part.old_seqs.tolist(), pairs, strict=True))
    new_ids: dict[int, str] = {}
    for row, place in resolved.places.items():
        new_ids[row], queues[row], offsets[row] = place.id, place.queue, place.offset
        seqs[row], due[row] = now_at.get(place.seq, (place.seq, place.due_ms))
    seqs[resolved.sure.rows], due[resolved.sure.rows] = resolved.sure.seqs, resolved.sure.due
    again = (same_as >= 0).nonzero()[0]
    firsts = same_as[again]
    for column in (seqs, due, queues, offsets):
        column[again] = column[firsts]
    ids = _with_ids(plan.ids, new_ids, again, firsts)
    if notes is not None:
        notes = [note if is_new else "" for note, is_new in zip(notes, same_as == FRESH, strict=True)]
    due[same_as == REFUSED] = NO_TIME_MS
    is_repeat = (same_as != FRESH) & (same_as != REFUSED)
    return Answers(count, seqs, due, ids, queues, offsets, is_repeat, notes, resolved.errors)


def _with_ids(ids: Texts, new_ids: dict[int, str], again: I64, firsts: I64) -> Texts:
    """The id of the message that each row is: its own, or that of the one it repeats."""
    if not new_ids and not len(again):
        return ids
    texts_out = list(ids) if isinstance(ids, list) else ids.to_pylist()
    for row, message_id in new_ids.items():
        texts_out[row] = message_id.encode() if isinstance(ids, list) else message_id
    for row, first in zip(again.tolist(), firsts.tolist(), strict=True):
        texts_out[row] = texts_out[first]
    return texts_out if isinstance(ids, list) else pa.array(texts_out, pa.string())
