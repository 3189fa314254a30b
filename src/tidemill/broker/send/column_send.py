"""Sends that come in columns: requests of many small messages, joined, checked and stored without a loop.

Owns the quick way for *plain* messages, which nearly all are: topics that exist, ids of the client's own, no
level, no message group, not sent once. All columns are checked as columns and written as one frame. Whatever
is not plain, or would be refused, or was perhaps stored before, goes the sender's way, message by message,
where every rule and every error lives; so here a doubt is enough to hand the whole batch over.

Invariant: the quick way stores exactly what the sender would have stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np

from tidemill.broker.send.admission import (
    are_words,
    check_carried,
    check_keys,
    check_properties,
    check_tag,
    check_type,
)
from tidemill.broker.send.draft_columns import columns_of
from tidemill.broker.send.jitter import drawn_each, has_sound_jitter
from tidemill.broker.send.planned_send import Answer
from tidemill.broker.send.write_context import WriteContext
from tidemill.core.errors import RequestError
from tidemill.core.frozen import frozen
from tidemill.core.limits import ID_CHARS_MAX, PROPERTIES_BYTES_MAX
from tidemill.core.model import NO_QUEUE, NO_SEQ, NO_TIME_MS, Draft, MessageType
from tidemill.core.send_answers import result_of_new
from tidemill.core.send_batch import SendColumns, join_columns
from tidemill.log.arrays import I64, U8, U64, all_of, each_of, numbers_to
from tidemill.store.find.hashing import PURPOSE_ID, hash_texts, seed_of, topic_seeds
from tidemill.store.formats.entry_format import FLAG_NEAR
from tidemill.store.formats.framing import fits_a_frame
from tidemill.store.formats.message_format import encode_properties
from tidemill.store.formats.plain_rows import PlainRows
from tidemill.store.topics import Topic


class PlainAnswers(NamedTuple):
    """All messages of a request were stored anew, one value for each: its seq and when it is due (-1: not
    timed), its queue and its offset there (-1: not there yet; None: that of all)."""

    seqs: Sequence[int]
    dues_ms: list[int]
    queues: list[int] | None = None
    offsets: list[int] | None = None

    def part(self, at: int, end: int) -> PlainAnswers:
        seqs, dues_ms = self.seqs[at:end], self.dues_ms[at:end]
        if self.queues is None or self.offsets is None:
            return PlainAnswers(seqs, dues_ms)
        return PlainAnswers(seqs, dues_ms, self.queues[at:end], self.offsets[at:end])


Answers = PlainAnswers | list[Answer]


@frozen
class _Plain:
    """The columns of messages that are all plain, texts encoded; topics as indexes into their names."""

    names: list[str]
    which: list[int] | None  # None: all are for the first
    due: I64 | int  # one number: of all
    timed: I64  # rows
    ids: list[bytes]
    tags: list[bytes] | None
    keys: list[bytes] | None
    properties: list[bytes] | None
    bodies: list[bytes]
    born_at_ms: I64 | None

    @property
    def are_all_timed(self) -> bool:
        return len(self.timed) == len(self.bodies)


class ColumnSend(WriteContext):
    """Stores requests that come in columns. Thread-safe."""

    def send(self, parts: Sequence[SendColumns]) -> list[Answers]:
        """Store what several requests ask for; each gets the answers to its own messages, in order."""
        stored = self._try_plain(parts)
        if stored is not None:
            return [stored] if len(parts) == 1 else [stored.part(at, end) for at, end in _spans(parts)]
        drafts = list(chain.from_iterable(part.drafts() for part in parts))
        answers = self._sender.send_each(drafts)
        return [answers[at:end] for at, end in _spans(parts)]

    def send_each(self, drafts: Sequence[Draft], *, creates_topics: bool) -> list[Answer]:
        """Store the drafts that are right; each gets its own answer."""
        columns = columns_of(drafts) if isinstance(drafts, list | tuple) else None
        stored = None if columns is None else self._try_plain([columns])
        if stored is None:
            return self._sender.send_each(drafts, creates_topics=creates_topics)
        columns_of_answers = (column for column in stored if column is not None)
        rows = zip(drafts, *columns_of_answers, strict=True)
        return [result_of_new(self._broker_id, *placed) for placed in rows]

    def _try_plain(self, parts: Sequence[SendColumns]) -> PlainAnswers | None:
        """What became of all messages, stored the quick way; None if they must go the sender's."""
        columns = parts[0] if len(parts) == 1 else join_columns(parts)
        if columns.level or columns.group or columns.once or self._sender.tick_limit.is_on:
            return None
        body_bytes, now_ms = sum(map(len, columns.bodies)), self._now_ms()
        plain = self._plain(columns, body_bytes, now_ms)
        if plain is None:
            return None
        with self._sender.in_flight.hold(body_bytes):
            return self._store_plain(plain, now_ms)

    # -- checking ---------------------------------------------------------------------------------

    def _plain(self, columns: SendColumns, body_bytes: int, now_ms: int) -> _Plain | None:
        """The messages, if every one is plain and passes the checks that need no topic."""
        count, bodies = len(columns.bodies), columns.bodies
        if not count or not fits_a_frame(count, body_bytes):
            return None
        if (
            body_bytes > self._settings.body_bytes_max
            and max(map(len, bodies)) > self._settings.body_bytes_max
        ):
            return None
        try:
            ids = _plain_ids(columns.id)
            due = _due(columns, now_ms, now_ms + self._settings.max_delay_ms)
            if ids is None or due is None:
                return None
            if columns.jitter:
                due = _with_jitter(due, columns.jitter, ids, now_ms + self._settings.max_delay_ms)
                if due is None:
                    return None
            if isinstance(due, int):
                timed = numbers_to(0 if due == NO_TIME_MS else count)
            else:
                timed = (due != NO_TIME_MS).nonzero()[0]
            texts = _tags(columns.tag), _keys(columns.keys), _properties(columns.props, columns.carried)
            if sum(max(map(len, column)) for column in texts if column) > PROPERTIES_BYTES_MAX:
                return None  # perhaps more than the limit, in one message
            born = _born(columns.born, now_ms)
            return _Plain(columns.topics, columns.topic, due, timed, ids, *texts, bodies, born)
        except RequestError:
            return None  # the sender finds it again, and answers it alone

    def _topics_of(self, plain: _Plain) -> list[Topic] | None:
        """The topics, if all of them are there and take what is sent to them. Call under the writer lock."""
        topics = list(map(self._store.indexes.topics.named, plain.names))
        known = [topic for topic in topics if topic is not None]
        if len(known) < len(topics):
            return None
        try:
            for topic in known:  # each takes what any of them is sent: nearly always, all are the same
                if len(plain.timed):
                    check_type(MessageType.DELAY, topic.name, topic.type)
                if not plain.are_all_timed:
                    check_type(MessageType.NORMAL, topic.name, topic.type)
        except RequestError:
            return None
        return known

    # -- storing ----------------------------------------------------------------------------------

    def _store_plain(self, plain: _Plain, now_ms: int) -> PlainAnswers | None:
        """What became of all messages, after the sync; None if the batch is not as plain as it looked."""
        with self._store.writer.lock:
            topics = self._topics_of(plain)
            if topics is None:
                return None
            topic_ids = _topic_ids(topics, plain)
            hashes = hash_texts(plain.ids, _seeds(topic_ids))
            if self._store.indexes.find.has_any(hashes):
                return None  # perhaps a repeat
            flags, queues = self._flags(plain.due, now_ms), self._queues(topics, plain)
            appended = self._store.writer.put_plain(
                PlainRows(
                    now_ms,
                    topic_ids,
                    queues,
                    flags,
                    plain.due,
                    plain.timed,
                    plain.ids,
                    hashes,
                    plain.tags,
                    plain.keys,
                    plain.properties,
                    plain.bodies,
                    plain.born_at_ms,
                )
            )
        self._store.finish(appended)
        count = len(plain.bodies)
        self._hand_over(plain, appended.first_seq, flags)
        dues_ms = [plain.due] * count if isinstance(plain.due, int) else plain.due.tolist()
        if plain.are_all_timed:
            return PlainAnswers(range(appended.first_seq, appended.first_seq + count), dues_ms)
        of_some = all_of(NO_SEQ, count)
        of_some[plain.timed] = appended.first_seq + np.arange(len(plain.timed))
        queues[plain.timed] = NO_QUEUE
        return PlainAnswers(of_some.tolist(), dues_ms, queues.tolist(), list(appended.queue_offsets))

    def _hand_over(self, plain: _Plain, first_seq: int, flags: U8 | int) -> None:
        """Give the near ones to the releaser."""
        if isinstance(flags, int) and not flags:
            return
        count = len(plain.bodies)
        due, flags_of = each_of(plain.due, count), each_of(flags, count)
        self._sender.hand_over(due[plain.timed], first_seq, flags_of[plain.timed])

    def _flags(self, due: I64 | int, now_ms: int) -> U8 | int:
        near_end_ms = now_ms + self._settings.lead_ms
        if isinstance(due, int):
            return FLAG_NEAR if NO_TIME_MS < due < near_end_ms and self._sender.near_room() > 0 else 0
        is_soon = due < near_end_ms
        if not np.count_nonzero(is_soon) or self._sender.near_room() <= 0:
            return 0
        is_near = is_soon & (due != NO_TIME_MS)
        return np.where(is_near, np.uint8(FLAG_NEAR), np.uint8(0))

    def _queues(self, topics: list[Topic], plain: _Plain) -> I64:
        """The queue of each message. Their turns are taken: only for what is then stored."""
        count = len(plain.bodies)
        if plain.which is None:
            topic = topics[0]
            first = self._topics.first_turn(topic, count)
            return (numbers_to(count) + first) % topic.queue_count
        index_of = np.array(plain.which, np.int64)
        queue_ids = np.empty(count, np.int64)
        for index, topic in enumerate(topics):
            rows = (index_of == index).nonzero()[0]
            first = self._topics.first_turn(topic, len(rows))
            queue_ids[rows] = (first + np.arange(len(rows))) % topic.queue_count
        return queue_ids


def _topic_ids(topics: list[Topic], plain: _Plain) -> I64 | int:
    """The topic id of each message, or of all."""
    if plain.which is None:
        return topics[0].id
    return np.array([topics[index].id for index in plain.which], np.int64)


def _seeds(topic_ids: I64 | int) -> U64 | int:
    if isinstance(topic_ids, int):
        return seed_of(topic_ids, PURPOSE_ID)
    return topic_seeds(topic_ids, PURPOSE_ID)


def _spans(parts: Sequence[SendColumns]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(map(len, parts), initial=0)))


# -- columns, checked and encoded -----------------------------------------------------------------


def _plain_ids(ids: list[str | None] | None) -> list[bytes] | None:
    """The ids, if every message has one and no two are the same."""
    if ids is None or None in ids:
        return None
    texts: list[str] = ids  # type: ignore[assignment]
    if len(set(texts)) < len(texts) or not are_words(texts, ID_CHARS_MAX):
        return None
    return list(map(str.encode, texts))


def _due(columns: SendColumns, now_ms: int, latest_ms: int) -> I64 | int | None:
    """When each message is due, or all are; None if one is too late, has two times, or a negative delay."""
    given, start_ms = (columns.due, 0) if columns.delay is None else (columns.delay, now_ms)
    if columns.delay is not None and min(filter(None, columns.delay), default=0) < 0:
        return None
    if columns.due is not None and columns.delay is not None:
        if any(a is not None and b is not None for a, b in zip(columns.due, columns.delay, strict=True)):
            return None
        later = [None if ms is None else ms + now_ms for ms in columns.delay]
        given, start_ms = [b if a is None else a for a, b in zip(columns.due, later, strict=True)], 0
    if given is None:
        return NO_TIME_MS
    first = given[0]
    if first is not None and given.count(first) == len(given):
        return max(first + start_ms, 0) if first + start_ms <= latest_ms else None
    if None in given:
        due = np.array([NO_TIME_MS if at is None else max(at + start_ms, 0) for at in given], np.int64)
    else:
        due = np.maximum(np.array(given, np.int64) + start_ms, 0)
    return due if int(due.max()) <= latest_ms else None


def _with_jitter(due: I64 | int, jitter: list[int], ids: list[bytes], latest_ms: int) -> I64 | None:
    """When each message is due by chance, if every one may have the jitter it has."""
    jitter_ms, due_ms = np.array(jitter, np.int64), each_of(due, len(jitter))
    if not has_sound_jitter(jitter_ms, due_ms, latest_ms):
        return None
    later: I64 = due_ms + drawn_each(ids, jitter_ms)
    return later


def _born(born: list[int | None] | None, now_ms: int) -> I64 | None:
    """When each message was made, by the sender's clock; None if none says so."""
    if not born:
        return None
    return np.array([now_ms if at is None else at for at in born], np.int64)


def _tags(tags: list[str] | None) -> list[bytes] | None:
    if not tags:
        return None
    for tag in set(tags) - {""}:
        check_tag(tag)
    return [tag.encode() for tag in tags]


def _keys(keys: list[list[str] | None] | None) -> list[bytes] | None:
    if not keys:
        return None
    for given in keys:
        if given:
            check_keys(given)
    return [" ".join(given).encode() if given else b"" for given in keys]


def _properties(
    props: list[dict[str, str] | None] | None, carried: list[dict[str, str] | None] | None
) -> list[bytes] | None:
    for given in props or ():
        if given:
            check_properties(given)
    for given in carried or ():
        if given:
            check_carried(given)
    every = props or carried
    if props and carried:
        every = [{**(own or {}), **(other or {})} for own, other in zip(props, carried, strict=True)]
    if not every:
        return None
    return [encode_properties(given).encode() if given else b"" for given in every]
