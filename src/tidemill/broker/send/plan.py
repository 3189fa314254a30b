"""What a send will append: topics, ids, hashes, flags and queues of its rows. Sees numbers and hashes only.

Owns the rules that need the state of the broker, one for all ways of sending:

- *Topics*: a missing one is made when the first message for it may be stored. Each frame of a table is
  planned by itself: a topic that was deleted meanwhile is made again, as by any other send.
- *Near set*: a message due within the lead goes to the releaser while its near set has space; the first rows
  of a batch take what is left. All others go through the timer. The level queues likewise.
- *Queues*: only what is stored takes a turn at the queues of its topic. A message group has its own queue.

Call under the writer lock. Rows that depend on each other are decided by `resolve.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.send.admission import check_topic_name, check_type
from tidemill.broker.send.batch import SendBatch
from tidemill.broker.send.jitter import drawn_each
from tidemill.broker.send.resolve import FRESH, Refusal, Resolver
from tidemill.broker.send.tick_limit import TickLimit
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import RequestError
from tidemill.core.frozen import frozen
from tidemill.core.limits import LEVEL_WAITING_MAX, NEAR_COUNT_MAX
from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage, TopicType
from tidemill.log.arrays import I64, U64, Flags, each_of, numbers_to
from tidemill.release.releaser import Releaser
from tidemill.store.commit_log import CommitLog
from tidemill.store.find.hashing import PURPOSE_ID, seed_of, topic_seeds
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.framing import fits_a_frame, frame_bounds
from tidemill.store.formats.new_messages import NewMessages, new_messages
from tidemill.store.formats.texts import Texts, hash_column, slices_of, text_at, texts_at
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

_TOPIC_FRAME_BYTES = 512
_FIFO = int(MessageType.FIFO)
_NO_ROWS = np.empty(0, np.int64)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@frozen
class Plan:
    """What a send will append, and where each row of its batch stands."""

    messages: NewMessages  # perhaps none
    rows: I64 | None  # of the batch, that are stored; None: all
    due: I64 | int
    ids: Texts
    resolved: Resolver | None  # None: every row is stored as it came


class Planner:
    """Plans sends. Call under the writer lock."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        releaser: Releaser,
        settings: BrokerSettings,
        broker_id: str,
    ) -> None:
        self._store = store
        self._topics = topics
        self._releaser = releaser
        self._settings = settings
        self._broker_id = broker_id
        self.tick_limit = TickLimit(store, settings)

    def check_topics(
        self, batch: SendBatch, *, creates_topics: bool = True
    ) -> tuple[list[Topic | None], dict[int, Refusal]]:
        """The topics of a batch (None: missing), and the errors of rows that theirs does not take."""
        topics = list(map(self._store.topics.named, batch.topics))
        errors: dict[int, Refusal] = dict(batch.errors or ())
        for index, topic in enumerate(topics):
            if topic is None or topic.type is not TopicType.MIXED:
                rows = np.arange(batch.count) if batch.which is None else np.flatnonzero(batch.which == index)
                types = each_of(_types(batch), batch.count)[rows]
                for kind in np.unique(types).tolist():
                    try:
                        self._check_topic(topic, batch.topics[index], kind, creates_topics)
                    except RequestError as error:
                        wrong: dict[int, Refusal] = dict.fromkeys(rows[types == kind].tolist(), error)
                        errors = wrong | errors
        return topics, errors

    def _check_topic(self, topic: Topic | None, name: str, kind: int, creates_topics: bool) -> None:
        if topic is not None:
            check_type(MessageType(kind), topic.name, topic.type)
            return
        check_topic_name(name)
        if not creates_topics:
            self._topics.require(name)

    def plan(
        self,
        tx: CommitLog,
        batch: SendBatch,
        *,
        creates_topics: bool,
        is_all_or_none: bool,
        first_row: int | None,
    ) -> Plan:
        """Plan a batch; makes the topics that its messages need.

        `is_all_or_none`: raise the error of the first row that has one. `first_row`: of a table, for what is
        said about a row.
        """
        topics, errors = self.check_topics(batch, creates_topics=creates_topics)
        if is_all_or_none and errors:
            raise_first(errors)
        missing = self._missing(tx, batch, topics, errors) if None in topics else ()
        topic_ids: I64 | int
        if batch.which is None:
            topic_ids = 0 if topics[0] is None else topics[0].id
            seeds: U64 | int = seed_of(topic_ids, PURPOSE_ID)
        else:
            every = np.array([0 if topic is None else topic.id for topic in topics], np.int64)
            topic_ids = every[batch.which]
            seeds = topic_seeds(topic_ids, PURPOSE_ID)
        ids = self._ids(batch) if batch.lacks_ids or batch.ids is None else batch.ids
        due = batch.due if batch.jitter_ms is None else _with_jitter(batch, ids)
        hashes = hash_column(ids, seeds)
        may_repeat = batch.ids is not None and self._may_repeat(ids, hashes)
        rows = resolved = None
        stored, stored_ids, stored_due = batch, ids, due
        if may_repeat or errors or batch.once is not None or self.tick_limit.is_on:
            resolved = Resolver(self._store, self.tick_limit, batch, topics, topic_ids, ids, due, errors)
            resolved.resolve(hashes if may_repeat else None)
            if is_all_or_none:
                raise_first(resolved.errors, first_row)
            if resolved.new_ids:
                ids = [resolved.new_ids.get(row, text) for row, text in enumerate(ids)]
                hashes = hash_column(ids, seeds)
            rows, due = (resolved.same_as == FRESH).nonzero()[0], resolved.due
            stored, stored_ids, stored_due = (
                _retimed(batch, resolved).rows(rows),
                texts_at(ids, rows),
                due[rows],
            )
            topic_ids, hashes = topic_ids if isinstance(topic_ids, int) else topic_ids[rows], hashes[rows]
        if missing:
            self._create(tx, batch, topics, missing)
        messages = self._messages(stored, topics, topic_ids, stored_ids, hashes, stored_due)
        return Plan(messages, rows, due, ids, resolved)

    def _missing(
        self, tx: CommitLog, batch: SendBatch, topics: list[Topic | None], errors: dict[int, Refusal]
    ) -> list[int]:
        """Which topics must be made, with what they will be put in their places.

        Of each at least one message will be stored: the first one repeats nothing, and its tick is empty.
        """
        right = np.ones(batch.count, np.bool_)
        right[list(errors)] = False
        which = np.zeros(batch.count, np.int64) if batch.which is None else batch.which
        missing = [index for index in np.unique(which[right]).tolist() if topics[index] is None]
        for number, index in enumerate(missing, tx.topics.next_topic_id):
            topics[index] = self._topics.next_topic(number, batch.topics[index])
        return missing

    def _create(
        self, tx: CommitLog, batch: SendBatch, topics: list[Topic | None], missing: Sequence[int]
    ) -> None:
        """Make topics. A send that is refused makes none: there is space for it as well."""
        tx.reserve([_TOPIC_FRAME_BYTES] * len(missing) + batch.frames_at_most(), batch.count)
        for index in missing:
            assert self._topics.ensure(tx, batch.topics[index]) == topics[index]

    def _may_repeat(self, ids: Texts, hashes: U64) -> bool:
        """Whether an id comes twice, or was perhaps stored before."""
        if isinstance(ids, list):
            is_repeated = len(set(ids)) < len(ids)
        else:
            ascending = np.sort(hashes)
            is_repeated = bool((ascending[1:] == ascending[:-1]).any())
        return is_repeated or self._store.find.has_any(hashes)

    def _ids(self, batch: SendBatch) -> Texts:
        """The ids that were given; made ones for rows without."""
        log_end = self._store.log.written_end
        if not isinstance(batch.bodies, list):
            made = _made_ids(self._broker_id, log_end, batch.count)
            return made if batch.ids is None else pc.if_else(pc.equal(batch.ids, ""), made, batch.ids)
        first = log_end << 16
        given = batch.ids or [b""] * batch.count
        return [text or f"{self._broker_id}{first + row:016X}".encode() for row, text in enumerate(given)]

    def _messages(
        self,
        batch: SendBatch,
        topics: Sequence[Topic | None],
        topic_ids: I64 | int,
        ids: Texts,
        hashes: U64,
        due: I64 | int,
    ) -> NewMessages:
        """The messages of a batch, all of which are stored."""
        types, bodies = _types(batch), batch.bodies
        bounds: Sequence[tuple[int, int]] = ()
        in_order = batch.groups is not None and types == _FIFO
        if isinstance(bodies, list) and not fits_a_frame(batch.count, sum(map(len, bodies))):
            bounds = tuple(frame_bounds(map(len, bodies)))
        return NewMessages(
            batch.count,
            batch.timed,
            batch.now_ms,
            batch.now_ms if batch.born_at_ms is None else batch.born_at_ms,
            due,
            topic_ids,
            self._queues(batch, topics) if batch.count else _NO_ROWS,
            types,
            self._flags(batch.count, due, batch.levels, batch.now_ms, in_order),
            batch.levels,
            ids,
            hashes,
            bodies,
            batch.tags,
            batch.keys,
            batch.groups,
            batch.properties,
            bounds,
        )

    def planned(
        self, messages: Sequence[StoredMessage], now_ms: int, *, in_order: bool = False
    ) -> NewMessages:
        """Messages that the broker itself stores anew (retries, commits), with their flags.

        `in_order`: released in the order of their message group.
        """
        new = new_messages(messages)
        return replace(new, flags=self._flags(new.count, new.deliver_at_ms, new.levels, now_ms, in_order))

    # -- flags and queues -------------------------------------------------------------------------

    def near_below_ms(self, now_ms: int) -> int:
        """Messages that are due before go to the near set; none while it is full."""
        has_room = self._releaser.near_count < NEAR_COUNT_MAX
        return now_ms + self._settings.lead_ms if has_room else NO_TIME_MS

    def _flags(
        self, count: int, due: I64 | int, levels: I64 | int, now_ms: int, in_order: Flags | bool
    ) -> I64 | int:
        """Level for rows on one, else near for those due within the lead; ordered for those in a group."""
        near_end_ms = now_ms + self._settings.lead_ms
        if isinstance(due, int) and isinstance(levels, int) and in_order is False:
            if not NO_TIME_MS < due < near_end_ms:
                return 0
            if self._releaser.near_count + count <= NEAR_COUNT_MAX:
                return FLAG_NEAR
        dues: I64 = each_of(due, count)
        is_timed = dues != NO_TIME_MS
        flags: I64 = (is_timed & in_order) * FLAG_FIFO
        near: Flags = is_timed & (dues < near_end_ms)
        if not isinstance(levels, int):
            on_level = _first(levels > 0, LEVEL_WAITING_MAX - self._store.levels.waiting)
            flags = flags | on_level * FLAG_LEVEL
            near = near & ~on_level
        if np.count_nonzero(near):
            flags = flags | _first(near, NEAR_COUNT_MAX - self._releaser.near_count) * FLAG_NEAR
        return flags

    def _queues(self, batch: SendBatch, topics: Sequence[Topic | None]) -> I64:
        """The queue of each row."""
        if batch.which is None and batch.groups is None:
            topic = topics[0]
            assert topic is not None
            first = self._topics.first_turn(topic, batch.count)
            return (numbers_to(batch.count) + first) % topic.queue_count
        queues = np.empty(batch.count, np.int64)
        which = each_of(0 if batch.which is None else batch.which, batch.count)
        in_group = np.zeros(batch.count, np.bool_) if batch.groups is None else _has_text(batch.groups)
        for index, topic in enumerate(topics):
            rows = (~in_group & (which == index)).nonzero()[0]
            if topic is not None:
                first = self._topics.first_turn(topic, len(rows))
                queues[rows] = (first + np.arange(len(rows))) % topic.queue_count
        for row in in_group.nonzero()[0].tolist():
            topic = topics[int(which[row])]
            assert topic is not None and batch.groups is not None
            queues[row] = zlib.crc32(text_at(batch.groups, row)) % topic.queue_count
        return queues


def raise_first(errors: dict[int, Refusal], first_row: int | None = None) -> None:
    """Raise the error of the first row that has one."""
    if errors:
        row = min(errors)
        error = errors[row]
        raise error if first_row is None else type(error)(f"row {first_row + row}: {error}")


def _with_jitter(batch: SendBatch, ids: Texts) -> I64:
    """When each row is due by chance."""
    assert batch.jitter_ms is not None
    asked = each_of(batch.due, batch.count)
    due: I64 = np.where(asked == NO_TIME_MS, NO_TIME_MS, asked + drawn_each(ids, batch.jitter_ms))
    return due


def _retimed(batch: SendBatch, resolved: Resolver) -> SendBatch:
    """The batch, where rows whose time was replaced are no longer on their level."""
    if not resolved.retimed or isinstance(batch.levels, int):
        return batch
    levels = batch.levels.copy()
    levels[resolved.retimed] = 0
    return replace(batch, levels=levels)


def _first(rows: Flags, space: int) -> Flags:
    """Of these rows the first, as many as there is space for."""
    if np.count_nonzero(rows) <= space:
        return rows
    first: Flags = rows & (np.cumsum(rows) <= space)
    return first


def _has_text(texts: Texts) -> Flags:
    if isinstance(texts, list):
        return np.array(list(map(bool, texts)), np.bool_)
    has_text: Flags = slices_of(texts)[2] > 0
    return has_text


def _types(batch: SendBatch) -> I64 | int:
    """What each message is, or all are."""
    timed_count = len(batch.timed)
    if batch.groups is None:
        if timed_count == batch.count:
            return int(MessageType.DELAY)
        if not timed_count:
            return int(MessageType.NORMAL)
    types = np.full(batch.count, int(MessageType.NORMAL))
    types[batch.timed] = MessageType.DELAY
    if batch.groups is not None:
        types[_has_text(batch.groups)] = MessageType.FIFO
    return types


def _made_ids(broker_id: str, log_end: int, count: int) -> pa.Array:
    """`<broker id><log end and row as 16 hex digits>` for every row, made column by column."""
    numbers = (np.uint64(log_end << 16) | np.arange(count, dtype=np.uint64)).astype(">u8")
    octets = numbers.view(np.uint8).reshape(count, 8)
    digits = np.empty((count, 24), np.uint8)
    digits[:, :8] = np.frombuffer(broker_id.encode(), np.uint8)
    digits[:, 8::2] = _HEX[octets >> 4]
    digits[:, 9::2] = _HEX[octets & 15]
    offsets = pa.py_buffer(np.arange(0, 24 * count + 1, 24, dtype=np.int32))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(digits))
