"""Sends that come in columns: requests of many small messages, joined, checked and stored without a loop.

Owns the quick way for *plain* messages, which nearly all are: topics that exist, ids of the client's own, no
level, no message group, not sent once. All columns are checked as columns and written as one frame. Whatever
is not plain, or would be refused, or was perhaps stored before, goes the sender's way, message by message,
where every rule and every error lives; so here a doubt is enough to hand the whole batch over.

Invariant: the quick way stores exactly what the sender would have stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple

import numpy as np

from tidemill.broker.admission import are_words, check_keys, check_properties, check_tag, check_type
from tidemill.broker.draft_columns import columns_of
from tidemill.broker.planned_send import Answer
from tidemill.broker.sending_verb import SendingVerb
from tidemill.core.errors import RequestError
from tidemill.core.limits import ID_CHARS_MAX
from tidemill.core.model import NO_QUEUE, NO_SEQ, NO_TIME_MS, Draft, MessageType
from tidemill.core.send_batch import SendColumns, receipt_of_new
from tidemill.log.arrays import I64, U8
from tidemill.store.entry_format import FLAG_NEAR
from tidemill.store.framing import fits_a_frame
from tidemill.store.hashing import PURPOSE_ID, hash_texts, topic_seeds
from tidemill.store.message_format import encode_properties
from tidemill.store.row_columns import PlainRows
from tidemill.store.topics import Topic


class PlainAnswers(NamedTuple):
    """All messages of a request were stored anew, one value for each: its seq and when it is due (-1: not
    timed), its queue and its offset there (-1: not there yet)."""

    seqs: list[int]
    dues_ms: list[int]
    queues: list[int]
    offsets: list[int]

    def part(self, at: int, end: int) -> PlainAnswers:
        return PlainAnswers(*(column[at:end] for column in self))


# Below so many, the sender is quicker than the fixed cost of columns.
_FEW = 8

Answers = PlainAnswers | list[Answer]


@dataclass(frozen=True, slots=True)
class _Plain:
    """The joined columns of several requests; topics as indexes into the names."""

    names: list[str]
    which: list[int]
    due: I64
    ids: list[bytes]
    tags: list[bytes] | None
    keys: list[bytes] | None
    properties: list[bytes] | None
    bodies: list[bytes]
    born_at_ms: I64 | None


class ColumnSend(SendingVerb):
    """Stores requests that come in columns. Thread-safe."""

    def send(self, parts: Sequence[SendColumns]) -> list[Answers]:
        """Store what several requests ask for; each gets the answers to its own messages, in order."""
        stored = self._try_plain(parts)
        if stored is not None:
            return [stored.part(at, end) for at, end in _spans(parts)]
        drafts = list(chain.from_iterable(part.drafts() for part in parts))
        answers = self._sender.send_each(drafts)
        return [answers[at:end] for at, end in _spans(parts)]

    def send_each(self, drafts: Sequence[Draft], *, creates_topics: bool) -> list[Answer]:
        """Store the drafts that are right; each gets its own answer."""
        is_worth_it = isinstance(drafts, list | tuple) and len(drafts) >= _FEW
        columns = columns_of(drafts) if is_worth_it else None
        stored = None if columns is None else self._try_plain([columns])
        if stored is None:
            return self._sender.send_each(drafts, creates_topics=creates_topics)
        return [receipt_of_new(self._broker_id, *placed) for placed in zip(drafts, *stored, strict=True)]

    def _try_plain(self, parts: Sequence[SendColumns]) -> PlainAnswers | None:
        """What became of all messages, stored the quick way; None if they must go the sender's."""
        body_bytes = sum(sum(map(len, part.bodies)) for part in parts)
        now_ms = self._now_ms()
        plain = self._plain(parts, body_bytes, now_ms)
        if plain is None:
            return None
        with self._sender.in_flight.hold(body_bytes):
            return self._store_plain(plain, now_ms)

    # -- checking ---------------------------------------------------------------------------------

    def _plain(self, parts: Sequence[SendColumns], body_bytes: int, now_ms: int) -> _Plain | None:
        """All parts as one, if every message is plain and passes the checks that need no topic."""
        rows = sum(map(len, parts))
        if self._sender.tick_limit.is_on or rows < _FEW or not fits_a_frame(rows, body_bytes):
            return None
        bodies = list(chain.from_iterable(part.bodies for part in parts))
        if max(map(len, bodies)) > self._settings.body_bytes_max:
            return None
        try:
            ids = _plain_ids(parts)
            due = _due(parts, now_ms, now_ms + self._settings.max_delay_ms)
            if ids is None or due is None or any(part.level or part.group or part.once for part in parts):
                return None
            names, which = _topics(parts)
            texts = (_tags(parts), _keys(parts), _properties(parts))
            return _Plain(names, which, due, ids, *texts, bodies, _born(parts, now_ms))
        except RequestError:
            return None  # the sender finds it again, and answers it alone

    def _topics_of(self, plain: _Plain) -> list[Topic] | None:
        """The topics, if all of them are there and take what is sent to them. Call under the writer lock."""
        topics = [self._store.indexes.topics.named(name) for name in plain.names]
        known = [topic for topic in topics if topic is not None]
        if len(known) < len(topics):
            return None
        is_timed = (plain.due != NO_TIME_MS).tolist()
        try:
            for index, timed in set(zip(plain.which, is_timed, strict=True)):
                kind = MessageType.DELAY if timed else MessageType.NORMAL
                check_type(kind, known[index].name, known[index].type)
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
            topic_ids = np.array([topics[index].id for index in plain.which], np.int64)
            hashes = hash_texts(plain.ids, topic_seeds(topic_ids, PURPOSE_ID))
            if len(self._store.indexes.find.find_many(hashes)[0]):
                return None  # perhaps a repeat
            flags, queues = self._flags(plain.due, now_ms), self._queues(topics, plain.which)
            appended = self._store.writer.put_plain(
                PlainRows(
                    now_ms,
                    topic_ids,
                    queues,
                    flags,
                    plain.due,
                    plain.ids,
                    hashes,
                    plain.tags,
                    plain.keys,
                    plain.properties,
                    plain.bodies,
                    plain.born_at_ms,
                )
            )
        self._store.writer.finish(appended)
        timed = (plain.due != NO_TIME_MS).nonzero()[0]
        self._sender.hand_over(plain.due[timed], appended.first_seq, flags[timed].astype(np.int64))
        seqs = np.full(len(plain.due), NO_SEQ, np.int64)
        seqs[timed] = appended.first_seq + np.arange(len(timed))
        queues[timed] = NO_QUEUE
        return PlainAnswers(seqs.tolist(), plain.due.tolist(), queues.tolist(), list(appended.queue_offsets))

    def _flags(self, due: I64, now_ms: int) -> U8:
        near_end_ms = now_ms + self._settings.lead_ms
        if int(due.min()) >= near_end_ms or self._sender.near_room() <= 0:
            return np.zeros(len(due), np.uint8)
        is_near = (due != NO_TIME_MS) & (due < near_end_ms)
        return np.where(is_near, np.uint8(FLAG_NEAR), np.uint8(0))

    def _queues(self, topics: list[Topic], which: list[int]) -> I64:
        index_of = np.array(which, np.int64)
        queue_ids = np.empty(len(which), np.int64)
        for index, topic in enumerate(topics):
            rows = (index_of == index).nonzero()[0]
            first = self._topics.first_turn(topic, len(rows))
            queue_ids[rows] = (first + np.arange(len(rows))) % topic.queue_count
        return queue_ids


# -- columns of several requests as one -----------------------------------------------------------


def _spans(parts: Sequence[SendColumns]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(map(len, parts), initial=0)))


def _topics(parts: Sequence[SendColumns]) -> tuple[list[str], list[int]]:
    """Distinct names, and which of them each message is for."""
    names: dict[str, int] = {}
    which: list[int] = []
    for part in parts:
        own = [names.setdefault(name, len(names)) for name in part.topics]
        which.extend(repeat(own[0], len(part)) if part.topic is None else map(own.__getitem__, part.topic))
    return list(names), which


def _plain_ids(parts: Sequence[SendColumns]) -> list[bytes] | None:
    """The ids, if every message has one and no two are the same."""
    texts: list[str] = []
    for part in parts:
        if part.id is None or None in part.id:
            return None
        texts.extend(part.id)  # type: ignore[arg-type]
    if len(set(texts)) < len(texts) or not are_words(texts, ID_CHARS_MAX):
        return None
    return [text.encode() for text in texts]


def _due(parts: Sequence[SendColumns], now_ms: int, latest_ms: int) -> I64 | None:
    """When each message is due, if none is too late and none has both a time and a delay."""
    columns = []
    for part in parts:
        given, start_ms = (part.due, 0) if part.delay is None else (part.delay, now_ms)
        if part.due is not None and part.delay is not None:
            if any(a is not None and b is not None for a, b in zip(part.due, part.delay, strict=True)):
                return None
            later = [None if ms is None else ms + now_ms for ms in part.delay]
            given, start_ms = [b if a is None else a for a, b in zip(part.due, later, strict=True)], 0
        if given is None:
            columns.append(np.full(len(part), NO_TIME_MS))
        elif None in given:
            timed = [NO_TIME_MS if at is None else max(at + start_ms, 0) for at in given]
            columns.append(np.array(timed, np.int64))
        else:
            columns.append(np.maximum(np.array(given, np.int64) + start_ms, 0))
    due = columns[0] if len(columns) == 1 else np.concatenate(columns)
    return due if int(due.max()) <= latest_ms else None


def _born(parts: Sequence[SendColumns], now_ms: int) -> I64 | None:
    """When each message was made, by whoever made it; None if none says so."""
    if not any(part.born for part in parts):
        return None
    every = chain.from_iterable(part.born or repeat(None, len(part)) for part in parts)
    return np.array([now_ms if at is None else at for at in every], np.int64)


def _tags(parts: Sequence[SendColumns]) -> list[bytes] | None:
    if not any(part.tag for part in parts):
        return None
    tags = list(chain.from_iterable(part.tag or repeat("", len(part)) for part in parts))
    for tag in set(tags) - {""}:
        check_tag(tag)
    return [tag.encode() for tag in tags]


def _keys(parts: Sequence[SendColumns]) -> list[bytes] | None:
    if not any(part.keys for part in parts):
        return None
    keys = [tuple(k or ()) for part in parts for k in part.keys or repeat(None, len(part))]
    for given in keys:
        check_keys(given)
    return [" ".join(given).encode() for given in keys]


def _properties(parts: Sequence[SendColumns]) -> list[bytes] | None:
    if not any(part.props for part in parts):
        return None
    every = [p or {} for part in parts for p in part.props or repeat(None, len(part))]
    for given in every:
        check_properties(given)
    return [encode_properties(given).encode() for given in every]
