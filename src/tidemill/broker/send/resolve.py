"""Rows of a send that depend on earlier ones: repeats by id, sends made once by key, ticks that are full.

Nearly no row does. Masks over hashes find the few that may, the *suspects*: an id or a key that was perhaps
seen before, one that comes twice in the batch, a tick that the batch would take over its limit. These are
decided in their order, and this is the only loop over rows of a send. The rules, for requests and tables
alike:

- An id counts for an hour; of a send made once (by an id of the caller's own), as long as the message is
  kept. The same content again is a repeat, another one is refused, or under an id that a library made another
  message (`content.py`). A stored timed message comes before one that is not timed, the newest first.
- A send made once repeats the oldest message that waits with its key, in the store before the batch;
  *replace* moves that one to the new time. The id is looked at first.
- What is refused or repeated takes no place in a tick, and no later row repeats a refused one.

Call under the writer lock, so that two equal sends at the same moment still make one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.send.batch import ONCE_NO, ONCE_REPLACE, SendBatch
from tidemill.broker.send.content import content_of, id_of_other, require_same
from tidemill.broker.send.jitter import drawn_ms
from tidemill.broker.send.tick_limit import TickLimit
from tidemill.core.errors import BusyError, RequestError
from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.core.model import NO_OFFSET, NO_QUEUE, NO_SEQ, NO_TIME_MS, StoredMessage
from tidemill.log.arrays import I64, U64, Flags, all_of, each_of
from tidemill.store.batch_read import columns_at
from tidemill.store.find.find_runs import PLACE_BIT, are_places
from tidemill.store.find.hashing import id_hash
from tidemill.store.formats.texts import Texts, key_hashes, slices_of, text_at
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

FRESH, STORED, REFUSED = -1, -2, -3  # what a row repeats, where that is no row of the batch

Refusal = RequestError | BusyError


class Known(NamedTuple):
    """A message that is stored, under the id or the key of a row."""

    message: StoredMessage | None  # None: its bytes are damaged, it is known by its hash
    seq: int
    place: int
    due_ms: int


class _Candidates(NamedTuple):
    """Messages that rows may mean: a row for each, where it is stored, and when it is due."""

    rows: I64
    seqs: I64
    places: U64
    due: I64

    def of(self, which: I64) -> _Candidates:
        return _Candidates(self.rows[which], self.seqs[which], self.places[which], self.due[which])


class Place(NamedTuple):
    """Where the message is that a row repeats."""

    id: str
    seq: int
    due_ms: int
    queue: int
    offset: int


_NOTHING = np.empty(0, np.int64)
NO_CANDIDATES = _Candidates(_NOTHING, _NOTHING, _NOTHING.astype(np.uint64), _NOTHING)
_CONTENT_COLUMNS = ("id", "keys", "body", "tag", "message_group", "properties")


class Resolver:
    """Decides the suspects of one batch; the results are its public fields."""

    def __init__(
        self,
        store: MessageStore,
        tick_limit: TickLimit,
        batch: SendBatch,
        topics: Sequence[Topic | None],
        topic_ids: I64 | int,
        ids: Texts,
        due: I64 | int,
        errors: dict[int, Refusal],
    ) -> None:
        self._store = store
        self._tick_limit = tick_limit
        self._batch = batch
        self._topics = topics
        self._topic_ids: I64 = each_of(topic_ids, batch.count)
        self._ids = ids
        self.due: I64 = each_of(due, batch.count).copy()
        self.same_as = all_of(FRESH, batch.count)
        self.same_as[list(errors)] = REFUSED
        self.errors = errors
        self.new_ids: dict[int, bytes] = {}  # of rows whose id, made by a library, another message has
        self.places: dict[int, Place] = {}  # of rows that repeat a stored message
        self.sure = NO_CANDIDATES  # rows that repeat a stored message, without their places
        self.moves: dict[int, int] = {}  # seqs whose time is replaced, and their new time
        self.retimed: list[int] = []  # rows of the batch whose time was replaced
        self._waiting: dict[int, list[Known]] = {}
        self._known: dict[int, list[Known]] = {}
        self._fresh_ids: dict[tuple[int, str], int] = {}
        self._fresh_keys: dict[tuple[int, bytes], int] = {}
        self._planned: Counter[tuple[int, int]] = Counter()

    def resolve(self, id_hashes: U64 | None) -> Resolver:
        """Decide about every suspect; `id_hashes`: of the ids, None where no caller gave any."""
        suspects = np.zeros(self._batch.count, np.bool_)
        if id_hashes is not None:
            suspects |= _repeated(id_hashes)
            candidates = _candidates(self._store, np.arange(self._batch.count), id_hashes)
            suspects[candidates.rows] = True
            if not isinstance(self._batch.bodies, list):
                candidates = self._without_sure(candidates)
            self._known = _read(self._store, candidates)
        if self._batch.once is not None:
            suspects |= self._suspect_keys(self._batch.once)
        if self._tick_limit.is_on:
            suspects |= self._in_full_ticks()
        for row in (suspects & (self.same_as == FRESH)).nonzero()[0].tolist():
            try:
                self._decide(row)
            except (RequestError, BusyError) as error:
                self.errors[row] = error
                self.same_as[row] = REFUSED
        return self

    # -- suspects ---------------------------------------------------------------------------------

    def _without_sure(self, found: _Candidates) -> _Candidates:
        """Mark rows of a table that plainly repeat a stored message, one with the same id and content.

        A table that is sent again consists of these, and to look at each would hold up the writer.
        """
        batch = self._batch
        at = np.flatnonzero(np.bincount(found.rows, minlength=batch.count)[found.rows] == 1)
        rows, places = found.rows[at], found.places[at]
        is_once = each_of(ONCE_NO if batch.once is None else batch.once, batch.count)[rows] != ONCE_NO
        given: list[Any] = [self._ids, batch.keys, batch.bodies, batch.tags, batch.groups, batch.properties]
        stored_at, *known = columns_at(self._store, places, ("stored_at_ms", *_CONTENT_COLUMNS))
        stored_at_ms = stored_at.fill_null(0).to_numpy(zero_copy_only=False)
        is_sure = is_once | (batch.now_ms - stored_at_ms < DEDUPLICATION_MS)
        # As `require_same`: of a send made once by its key, id and keys alone have to be the same.
        by_key: Flags = is_once & (False if batch.keys is None else slices_of(batch.keys)[2][rows] > 0)
        for own, there, name in zip(given, known, _CONTENT_COLUMNS, strict=True):
            are_same = pc.equal(there, "" if own is None else own.take(pa.array(rows))).fill_null(False)
            may_differ: Flags | bool = False if name in ("id", "keys") else by_key
            is_sure &= are_same.to_numpy(zero_copy_only=False) | may_differ
        self.sure = found.of(at[is_sure])
        self.same_as[self.sure.rows] = STORED
        return found.of((self.same_as[found.rows] == FRESH).nonzero()[0])

    def _suspect_keys(self, once: I64) -> Flags:
        """Rows that are sent once with a key that waits or comes twice, and those it comes in."""
        suspects = np.zeros(self._batch.count, np.bool_)
        rows, hashes = key_hashes(self._batch.keys, self._topic_ids)
        counts = (self.due[rows] != NO_TIME_MS) & (self.same_as[rows] == FRESH)
        rows, hashes = rows[counts], hashes[counts]
        asks = once[rows] != ONCE_NO
        suspects[rows[_repeated(hashes) & np.isin(hashes, hashes[asks])]] = True
        self._waiting = _read(self._store, _candidates(self._store, rows[asks], hashes[asks], waits=True))
        suspects[list(self._waiting)] = True
        return suspects

    def _in_full_ticks(self) -> Flags:
        """Rows of ticks that the batch would take over the limit."""
        batch = self._batch
        if batch.has_made_id is not None and batch.jitter_ms is not None:
            return np.ones(batch.count, np.bool_)  # a new id draws another time
        full = np.zeros(batch.count, np.bool_)
        timed = batch.timed
        full[timed] = self._tick_limit.crowded(self._topic_ids[timed], self.due[timed])
        return full

    # -- one row ----------------------------------------------------------------------------------

    def _decide(self, row: int) -> None:
        topic = self._topics[0 if self._batch.which is None else int(self._batch.which[row])]
        assert topic is not None
        given_id = text_at(self._ids, row).decode()
        message_id = self._own_id(row, topic, given_id)
        if self._repeats_id(row, topic, message_id) or self._repeats_key(row, topic):
            return
        due_ms = int(self.due[row])
        if self._tick_limit.is_on and due_ms != NO_TIME_MS:
            self._tick_limit.take(topic, due_ms, self._planned)
        self._fresh_ids[topic.id, message_id] = row
        if self._batch.keys is not None and due_ms != NO_TIME_MS:
            for key in text_at(self._batch.keys, row).split():
                self._fresh_keys.setdefault((topic.id, key), row)

    def _own_id(self, row: int, topic: Topic, given_id: str) -> str:
        """The row's id; another one where a library made it for two messages."""
        made = self._batch.has_made_id
        if made is None or not made[row]:
            return given_id
        first = self._fresh_ids.get((topic.id, given_id))
        if first is not None:
            known = self._batch.content(first)
        else:
            stored = self._known_before(row, given_id)
            if stored is None or stored.message is None:
                return given_id
            known = content_of(stored.message)
        content = self._batch.content(row)
        if content == known:
            return given_id
        new_id = id_of_other(given_id, content)
        self.new_ids[row] = new_id.encode()
        self._known[row] = _with_id(self._store, topic.id, new_id)
        if self._batch.jitter_ms is not None and self.due[row] != NO_TIME_MS:
            self.due[row] = each_of(self._batch.due, self._batch.count)[row]
            self.due[row] += drawn_ms(new_id, int(self._batch.jitter_ms[row]))
        return new_id

    def _known_before(self, row: int, message_id: str) -> Known | None:
        """The message stored with the row's id, within the hour or, once by an own id, ever."""
        batch = self._batch
        is_once = batch.once is not None and batch.once[row] != ONCE_NO
        counts_for_ever = is_once and (batch.has_made_id is None or not batch.has_made_id[row])
        now_ms = None if counts_for_ever else batch.now_ms
        return _meant(self._store, self._known.get(row, ()), message_id, now_ms)

    def _repeats_id(self, row: int, topic: Topic, message_id: str) -> bool:
        first = self._fresh_ids.get((topic.id, message_id))
        if first is not None:
            self._require_same(row, self._batch.content(first), message_id, topic.name)
            self.same_as[row] = first
            return True
        known = self._known_before(row, message_id)
        if known is None:
            return False
        if known.message is not None:
            self._require_same(row, content_of(known.message), message_id, topic.name)
        queue, offset = NO_QUEUE, NO_OFFSET
        if known.seq == NO_SEQ and known.message is not None:
            queue, offset = known.message.queue_id, self._store.queue_offset(known.place)
        self.same_as[row] = STORED
        self.places[row] = Place(message_id, known.seq, known.due_ms, queue, offset)
        return True

    def _require_same(self, row: int, known: dict[str, bytes], message_id: str, topic_name: str) -> None:
        once, content = self._batch.once, self._batch.content(row)
        by_key = once is not None and once[row] != ONCE_NO and bool(content["keys"])
        require_same(content, known, message_id, topic_name, by_key=by_key)

    def _repeats_key(self, row: int, topic: Topic) -> bool:
        """Whether a send made once repeats (and perhaps moves) a message that waits with its key."""
        once, keys, due_ms = self._batch.once, self._batch.keys, int(self.due[row])
        if once is None or once[row] == ONCE_NO or keys is None or due_ms == NO_TIME_MS:
            return False
        key = text_at(keys, row)
        replaces = once[row] == ONCE_REPLACE
        for known in self._waiting.get(row, ()):
            # One whose bytes are damaged does not count: it will not be delivered.
            if known.message is not None and key.decode() in known.message.keys:
                if replaces:
                    self.moves[known.seq] = due_ms
                self.same_as[row] = STORED
                self.places[row] = Place(known.message.id, known.seq, known.due_ms, NO_QUEUE, NO_OFFSET)
                return True
        first = self._fresh_keys.get((topic.id, key))
        if first is None:
            return False
        if replaces:
            self.due[first] = due_ms
            self.retimed.append(first)
        self.same_as[row] = first
        return True


def _repeated(hashes: U64) -> Flags:
    """Which hashes come more than once."""
    ascending = np.sort(hashes)
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    return np.isin(hashes, twice) if len(twice) else np.zeros(len(hashes), np.bool_)


# -- what is stored -------------------------------------------------------------------------------


def stored_before(store: MessageStore, topic_id: int, message_id: str, now_ms: int) -> Known | None:
    """The message that was stored with this id within the hour."""
    return _meant(store, _with_id(store, topic_id, message_id), message_id, now_ms)


def _with_id(store: MessageStore, topic_id: int, message_id: str) -> list[Known]:
    hashes = np.array([id_hash(topic_id, message_id)], np.uint64)
    return _read(store, _candidates(store, np.zeros(1, np.int64), hashes)).get(0, [])


def _meant(
    store: MessageStore, candidates: Sequence[Known], message_id: str, now_ms: int | None
) -> Known | None:
    """The first that has the id and was stored within the hour, or ever (None)."""
    for known in candidates:
        is_meant = known.message is None or known.message.id == message_id
        if is_meant and (now_ms is None or now_ms - _stored_at_ms(store, known, now_ms) < DEDUPLICATION_MS):
            return known
    return None


def _stored_at_ms(store: MessageStore, known: Known, now_ms: int) -> int:
    """When a message was stored; for one that is damaged and not timed, at the latest."""
    if known.message is not None:
        return known.message.stored_at_ms
    if known.seq != NO_SEQ:
        return int(store.entry(known.seq)["stored_at_ms"])
    stored_by_ms = store.stored_by_ms(known.place)
    return now_ms if stored_by_ms == NO_TIME_MS else stored_by_ms


def _candidates(store: MessageStore, rows: I64, hashes: U64, *, waits: bool = False) -> _Candidates:
    """The stored messages that the ids (or, of those that wait, the keys) of rows may mean, in order."""
    found_at, refs = store.find.find_many(hashes)
    places, seqs, due = _where(store, refs)
    there = (places >> np.uint64(16) >= np.uint64(store.log.head)) & (places > 0)
    if waits:
        there &= seqs != NO_SEQ
        there[there] = store.ledger.pending_mask(seqs[there])
    order = np.flatnonzero(there)
    if not waits:  # the newest first, timed ones before the others
        order = order[np.lexsort((-order, refs[order] >= PLACE_BIT, found_at[order]))]
    return _Candidates(rows[found_at], seqs, places, due).of(order)


def _read(store: MessageStore, found: _Candidates) -> dict[int, list[Known]]:
    """The candidates of each row."""
    places, known = found.places.tolist(), dict[int, list[Known]]()
    columns = (store.messages(places), found.seqs.tolist(), places, found.due.tolist())
    for row, *fields in zip(found.rows.tolist(), *columns, strict=True):
        known.setdefault(row, []).append(Known(*fields))
    return known


def _where(store: MessageStore, refs: U64) -> tuple[U64, I64, I64]:
    """Place (0: nowhere any more), seq and due time of what each ref means."""
    ledger = store.ledger
    places = np.where(are_places(refs), refs & ~PLACE_BIT, np.uint64(0))
    seqs, due = all_of(NO_SEQ, len(refs)), all_of(NO_TIME_MS, len(refs))
    timed = np.flatnonzero((refs >= np.uint64(ledger.head_seq)) & (refs < np.uint64(ledger.next_seq)))
    timed = timed[ledger.states(refs[timed].astype(np.int64)) != State.MOVED]
    seqs[timed] = refs[timed].astype(np.int64)
    entries = store.entries.take(seqs[timed])
    places[timed], due[timed] = entries["place"], entries["deliver_at_ms"]
    return places, seqs, due
