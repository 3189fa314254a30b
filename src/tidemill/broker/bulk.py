"""Bulk sends: an Arrow table in, a few large frames out, no loop per message.

Owns the way from a caller's columns to the message schema. Columns (all but `body` optional, unless `topic`
is given for all):

    topic string        body binary or string      deliver_at timestamp or int64 ms      delay_ms int64 id
    string           key string                 tag string          message_group string      properties
    string (JSON object)

Every check of a single send is made here too, on whole columns. A table is stored frame by frame; each
frame whole or not at all. De-duplication by id works as for single sends; once by key belongs to single
sends and Flight.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.admission import (
    check_delay,
    check_id,
    check_keys,
    check_message_group,
    check_properties,
    check_tag,
    check_topic_name,
    check_type,
)
from tidemill.broker.repeats import stored_repeats
from tidemill.broker.sender import Sender
from tidemill.broker.topic_admin import TopicAdmin
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import BodyTooLarge, IllegalKey, IllegalProperty, RequestError
from tidemill.core.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX
from tidemill.core.model import NO_TIME_MS, Handle, MessageType
from tidemill.log.arrays import I64, U8, Flags
from tidemill.store.entry_format import FLAG_FIFO, FLAG_NEAR
from tidemill.store.hashing import PURPOSE_ID, hash_slices, topic_seeds
from tidemill.store.message_format import SCHEMA, slices_of
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

_COLUMNS = {"topic", "body", "deliver_at", "delay_ms", "id", "key", "tag", "message_group", "properties"}
_FRAME_BYTES = FRAME_BYTES_MAX // 4
_FRESH, _STORED = -1, -2  # what a row repeats, where that is no row of the table
# How many of a timestamp's unit make a millisecond, and how many milliseconds one of them is.
_UNITS = {"s": (1, 1_000), "ms": (1, 1), "us": (1_000, 1), "ns": (1_000_000, 1)}
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@dataclass(frozen=True, slots=True)
class BulkReceipt:
    """The answer to a bulk send: ids and seqs (-1: not timed) in row order."""

    broker: str
    topics: pa.Array
    ids: pa.Array
    seqs: I64
    deliver_at_ms: I64

    def __len__(self) -> int:
        return len(self.seqs)

    def handles(self) -> list[Handle]:
        """Handles of the timed messages, in row order."""
        timed = np.flatnonzero(self.seqs >= 0)
        ids, topics = (
            self.ids.take(pa.array(timed)).to_pylist(),
            self.topics.take(pa.array(timed)).to_pylist(),
        )
        rows = zip(topics, ids, self.seqs[timed].tolist(), strict=True)
        return [Handle(self.broker, topic, message_id, seq) for topic, message_id, seq in rows]


@dataclass(frozen=True, slots=True)
class _Checked:
    """Columns of a frame's worth of rows that may be sent."""

    topics: pa.Array
    due: I64
    groups: pa.Array
    has_group: Flags
    types: U8
    ids: pa.Array
    tags: pa.Array
    keys: pa.Array
    properties: pa.Array
    bodies: pa.Array


class Bulk:
    """The bulk send verb. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        sender: Sender,
        settings: BrokerSettings,
        broker_id: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._sender = sender
        self._settings = settings
        self._broker_id = broker_id
        self._now_ms = now_ms

    def send(self, table: pa.Table | pa.RecordBatch, topic_name: str | None) -> BulkReceipt:
        """Check the whole table, then store it frame by frame."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        self._check_columns(table, topic_name)
        now_ms = self._now_ms()
        # The whole table is checked before the first topic is made.
        checked = [
            self._checked(part, topic_name, now_ms) for batch in table.to_batches() for part in _framed(batch)
        ]
        batches = [(self._canonical(part, now_ms), part.topics) for part in checked]
        parts = [self._store_batch(batch, topics, now_ms) for batch, topics in batches]
        return BulkReceipt(
            self._broker_id,
            pa.concat_arrays([part[0] for part in parts]) if parts else pa.array([], pa.string()),
            pa.concat_arrays([part[1] for part in parts]) if parts else pa.array([], pa.string()),
            np.concatenate([part[2] for part in parts]) if parts else np.empty(0, np.int64),
            np.concatenate([part[3] for part in parts]) if parts else np.empty(0, np.int64),
        )

    def _check_columns(self, table: pa.Table, topic_name: str | None) -> None:
        names = set(table.column_names)
        if unknown := names - _COLUMNS:
            raise RequestError(f"unknown columns {sorted(unknown)}; known are {sorted(_COLUMNS)}")
        if "body" not in names or ("topic" not in names) == (topic_name is None):
            raise RequestError(
                "a table needs a `body` column, and its topic either as a column or as an argument"
            )
        if {"deliver_at", "delay_ms"} <= names:
            raise RequestError("give only one of the columns deliver_at and delay_ms")

    # -- columns ----------------------------------------------------------------------------------

    def _checked(self, batch: pa.RecordBatch, topic_name: str | None, now_ms: int) -> _Checked:
        """The columns of a batch, each of which passed the checks of a single send."""
        count = batch.num_rows
        topics = _texts(batch, "topic") if topic_name is None else pa.array([topic_name] * count, pa.string())
        due = self._due_times(batch, now_ms)
        groups = _checked(_texts(batch, "message_group"), check_message_group)
        has_group = slices_of(groups)[2] > 0
        types = np.where(
            has_group, MessageType.FIFO, np.where(due != NO_TIME_MS, MessageType.DELAY, MessageType.NORMAL)
        )
        self._check_topics(topics, types)
        return _Checked(
            topics=topics,
            due=due,
            groups=groups,
            has_group=has_group,
            types=types.astype(np.uint8),
            ids=_checked(_texts(batch, "id"), check_id),
            tags=_checked(_texts(batch, "tag"), check_tag),
            keys=_checked_keys(_texts(batch, "key")),
            properties=_checked(_texts(batch, "properties"), _check_property_text),
            bodies=self._bodies(batch),
        )

    def _check_topics(self, names: pa.Array, types: I64) -> None:
        encoded = names.dictionary_encode()
        which = encoded.indices.to_numpy()
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            check_topic_name(name)
            topic = self._store.indexes.topics.named(name)
            if topic is None:
                self._store.ballast.require_whole()  # a send that will be refused makes no topic
                continue
            for kind in np.unique(types[which == index]).tolist():
                check_type(MessageType(kind), topic.name, topic.type)

    def _canonical(self, part: _Checked, now_ms: int) -> pa.RecordBatch:
        """A batch of the message schema; ids and offsets are still to be given."""
        count = len(part.due)
        encoded = part.topics.dictionary_encode()
        topics = [self._topics.find_or_create(name) for name in encoded.dictionary.to_pylist()]
        which = encoded.indices.to_numpy().astype(np.int64)
        columns: dict[str, Any] = {
            "id": part.ids,
            "topic_id": np.array([topic.id for topic in topics], np.uint32)[which],
            "queue_id": self._queues(topics, which, part.groups, part.has_group),
            "type": part.types,
            "level": np.zeros(count, np.uint16),
            "flags": self._flags(part.due, part.has_group, now_ms),
            "born_at_ms": np.full(count, now_ms),
            "stored_at_ms": np.full(count, now_ms),
            "deliver_at_ms": part.due,
            "queue_offset": np.full(count, -1),
            "tag": part.tags,
            "keys": part.keys,
            "message_group": part.groups,
            "properties": part.properties,
            "body": part.bodies,
        }
        arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _bodies(self, batch: pa.RecordBatch) -> pa.Array:
        body = batch.column("body")
        if body.null_count:
            raise RequestError("a body is null; use an empty one")
        body = body if body.type == pa.binary() else body.cast(pa.binary())
        longest = int(slices_of(body)[2].max(initial=0))
        if longest > self._settings.body_bytes_max:
            raise BodyTooLarge(f"a body has {longest} bytes, the limit is {self._settings.body_bytes_max}")
        return body

    def _due_times(self, batch: pa.RecordBatch, now_ms: int) -> I64:
        names = set(batch.schema.names)
        if "deliver_at" in names:
            column, start_ms = batch.column("deliver_at"), 0
        elif "delay_ms" in names:
            column, start_ms = batch.column("delay_ms"), now_ms
        else:
            return np.full(batch.num_rows, NO_TIME_MS)
        per_ms, ms_each = _UNITS[column.type.unit] if pa.types.is_timestamp(column.type) else (1, 1)
        is_timed = column.is_valid().to_numpy(zero_copy_only=False)
        given = column.cast(pa.int64()).fill_null(0).to_numpy()
        # Rounded up: a part of a millisecond must not make a message early.
        due = -(-given // per_ms)
        if len(due):
            check_delay(int(due.max()) * ms_each + start_ms, self._settings, now_ms)
        return np.where(is_timed, np.maximum(due * ms_each + start_ms, 0), NO_TIME_MS)

    def _flags(self, due: I64, has_group: Flags, now_ms: int) -> U8:
        is_timed = due != NO_TIME_MS
        near = is_timed & (due < now_ms + self._settings.lead_ms)
        if self._sender.near_room() < int(near.sum()):
            near[:] = False
        flags: U8 = (near * FLAG_NEAR | (has_group & is_timed) * FLAG_FIFO).astype(np.uint8)
        return flags

    def _queues(self, topics: list[Topic], which: I64, groups: pa.Array, has_group: Flags) -> I64:
        queue_ids = np.zeros(len(which), np.int64)
        for index, topic in enumerate(topics):
            rows = np.flatnonzero(which == index)
            first = self._topics.first_turn(topic, len(rows))
            queue_ids[rows] = (first + np.arange(len(rows))) % topic.queue_count
        for row in np.flatnonzero(has_group).tolist():
            queue_ids[row] = self._topics.choose_queue(topics[which[row]], groups[row].as_py())
        return queue_ids

    # -- storing ----------------------------------------------------------------------------------

    def _store_batch(
        self, batch: pa.RecordBatch, topics: pa.Array, now_ms: int
    ) -> tuple[pa.Array, pa.Array, I64, I64]:
        seqs = np.full(batch.num_rows, -1, np.int64)
        due = batch.column("deliver_at_ms").to_numpy().copy()
        with self._store.writer.lock:
            same_as = self._repeats(batch, topics, seqs, due, now_ms)
            fresh = np.flatnonzero(same_as == _FRESH)
            ids = self._ids(batch.column("id"))
            batch = batch.set_column(0, SCHEMA.field(0), ids)
            if len(fresh) < batch.num_rows:
                batch = batch.take(pa.array(fresh))
            first_seq = self._store.indexes.ledger.next_seq
            if len(fresh):
                self._store.writer.put_batch(batch, now_ms)
        self._store.writer.finish_written()
        timed = fresh[due[fresh] != NO_TIME_MS]
        seqs[timed] = first_seq + np.arange(len(timed))
        flags = batch.column("flags").to_numpy().astype(np.int64)
        self._sender.hand_over(due[timed], first_seq, flags[due[fresh] != NO_TIME_MS])
        again = np.flatnonzero(same_as >= 0)
        seqs[again], due[again] = seqs[same_as[again]], due[same_as[again]]
        return topics, ids, seqs, due

    def _repeats(self, batch: pa.RecordBatch, topics: pa.Array, seqs: I64, due: I64, now_ms: int) -> I64:
        """Per row: fresh, stored before (its seq and time are filled in), or the earlier row it repeats."""
        same_as = np.full(batch.num_rows, _FRESH)
        texts, starts, lengths = slices_of(batch.column("id"))
        given = np.flatnonzero(lengths)
        if not len(given):
            return same_as
        seeds = topic_seeds(batch.column("topic_id").to_numpy()[given].astype(np.uint64), PURPOSE_ID)
        hashes = hash_slices(texts, starts[given], lengths[given], seeds)
        ids = batch.column("id")
        names = ids.take(pa.array(given)).to_pylist()
        for at, seq, due_ms in stored_repeats(self._store, hashes, names, now_ms):
            row = given[at]
            same_as[row], seqs[row], due[row] = _STORED, seq, due_ms
        distinct, firsts, which = np.unique(hashes, return_index=True, return_inverse=True)
        if len(distinct) < len(hashes):
            for at in np.flatnonzero(firsts[which] != np.arange(len(hashes))).tolist():
                row, first_row = int(given[at]), int(given[firsts[which[at]]])
                if same_as[row] == _FRESH and ids[row] == ids[first_row] and topics[row] == topics[first_row]:
                    same_as[row] = first_row
        return same_as

    def _ids(self, given: pa.Array) -> pa.Array:
        """Given ids; made ones where none was given."""
        lengths = slices_of(given)[2]
        if not (lengths == 0).any():
            return given
        made = _made_ids(self._broker_id, self._store.log.written_end, len(given))
        return pc.if_else(pa.array(lengths > 0), given, made) if (lengths > 0).any() else made


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


def _framed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch that fit a frame, by rows and by bytes."""
    rows_max = FRAME_ROWS_MAX
    if batch.nbytes > _FRAME_BYTES:
        rows_max = max(1, min(rows_max, batch.num_rows * _FRAME_BYTES // batch.nbytes))
    for start in range(0, batch.num_rows, rows_max):
        part = batch.slice(start, rows_max)
        if part.num_rows > 1 and part.nbytes > 3 * _FRAME_BYTES:
            half = part.num_rows // 2
            yield from _framed(part.slice(0, half))
            yield from _framed(part.slice(half))
        else:
            yield part


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A text column without nulls; empty texts where it is missing."""
    if name not in batch.schema.names:
        offsets = pa.py_buffer(np.zeros(batch.num_rows + 1, np.int32))
        return pa.StringArray.from_buffers(batch.num_rows, offsets, pa.py_buffer(b""))
    column = batch.column(name)
    column = column if column.type == pa.string() else column.cast(pa.string())
    return column.fill_null("") if column.null_count else column


def _checked(column: pa.Array, check: Callable[[str], None]) -> pa.Array:
    """The column, after each distinct text in it passed the check."""
    if int(slices_of(column)[2].max(initial=0)):
        for text in column.unique().to_pylist():
            if text:
                check(text)
    return column


def _checked_keys(column: pa.Array) -> pa.Array:
    """Keys are many and distinct, so they are checked as a column; one that fails, alone for its error."""
    if not int(slices_of(column)[2].max(initial=0)):
        return column
    bad = pc.match_substring_regex(column, r"[\s\x00-\x1f\x7f]")
    too_long = pc.greater(pc.utf8_length(column), 256)
    worst = pc.index(pc.or_(bad, too_long), True).as_py()
    if worst >= 0:
        check_keys((column[worst].as_py(),))
        raise IllegalKey(f"key {column[worst].as_py()!r} is not allowed")
    return column


def _check_property_text(text: str) -> None:
    try:
        properties = json.loads(text)
    except ValueError as error:
        raise IllegalProperty(f"properties must be a JSON object of texts: {error}") from error
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise IllegalProperty("properties must be a JSON object whose values are texts")
    check_properties(properties)
