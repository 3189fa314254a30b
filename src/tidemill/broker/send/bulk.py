"""Bulk sends: an Arrow table in, a few large frames out, no loop per message.

Owns the way from a caller's columns (`bulk_columns.py`) to the message schema. Columns (all but `body`
optional, unless `topic` is given for all):

    topic string       body binary or string     deliver_at timestamp or int64 ms   delay_ms duration
                                                 (or deliver_at_ms)                 or int64
    level int          id string                 key string                         once bool or 'keep'
    tag string         message_group string      properties string (JSON object)    jitter_ms as delay_ms

A table is checked whole and space is reserved for all of it before the first row is stored. Then it is stored
frame by frame, and others may send between two frames: if they take the last space, `PartlyStoredError` says
how many rows are there; `IdInUseError` says so where a row of a later frame has the id of another message.
De-duplication by id and once by key work as for single sends (`deduplication.py`); `replace` belongs to
single sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.send.admission import (
    check_id,
    check_message_group,
    check_tag,
    check_topic_name,
    check_type,
)
from tidemill.broker.send.batch_bounds import check_bytes, check_whole, decoded_bytes, framed
from tidemill.broker.send.bulk_columns import (
    bodies_of,
    check_columns,
    check_key,
    check_named,
    check_property_text,
    checked_texts,
    checked_words,
    made_ids,
    onces_of,
    texts,
    times_of,
)
from tidemill.broker.send.deduplication import FRESH, Repeats, find_repeats
from tidemill.broker.send.jitter import drawn_rows, jitter_of_rows
from tidemill.broker.send.write_context import WriteContext
from tidemill.core.arguments import require_kind
from tidemill.core.errors import (
    BodyTooLargeError,
    DiskFullError,
    IdInUseError,
    IllegalIdError,
    IllegalKeyError,
    PartlyStoredError,
)
from tidemill.core.limits import FRAME_BYTES_MAX, ID_CHARS_MAX, KIB, PROPERTIES_BYTES_MAX
from tidemill.core.model import NO_TIME_MS, Handle, MessageType
from tidemill.log.arrays import I64, U8, Flags
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.message_format import SCHEMA, slices_of
from tidemill.store.topics import Topic

# What the message schema adds to a caller's columns: numbers, offsets of texts, an id; and once for a frame.
_ROW_BYTES = 128
_FRAME_BYTES = 8 * KIB


@dataclass(frozen=True, slots=True)
class TableResult:
    """The answer to a bulk send: ids and seqs (-1: not timed) in row order."""

    broker: str
    topics: pa.Array
    ids: pa.Array
    seqs: I64
    deliver_at_ms: I64
    is_repeat: Flags  # the message was there already: same id, or once by key
    notes: pa.Array | None = None  # texts, empty where there is nothing to say; None: nowhere is

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
    levels: I64
    notes: pa.Array | None
    groups: pa.Array
    has_group: Flags
    types: U8
    ids: pa.Array
    tags: pa.Array
    keys: pa.Array
    is_once: Flags
    properties: pa.Array
    bodies: pa.Array

    def __len__(self) -> int:
        return len(self.due)

    @property
    def bytes_at_most(self) -> int:
        """No fewer bytes than these rows will take in the log."""
        given = (self.ids, self.tags, self.keys, self.groups, self.properties, self.bodies)
        return sum(int(array.nbytes) for array in given) + len(self) * _ROW_BYTES + _FRAME_BYTES


class Bulk(WriteContext):
    """The bulk send verb. Thread-safe."""

    def send(self, table: pa.Table | pa.RecordBatch, topic_name: str | None) -> TableResult:
        """Check the whole table, then store it frame by frame."""
        require_kind("table", table, (pa.Table, pa.RecordBatch), "an Arrow table or batch")
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        check_columns(table.column_names, topic_name)
        batches = table.to_batches()
        for batch in batches:
            check_bytes(batch)
        with self._sender.in_flight.hold(sum(map(decoded_bytes, batches))):
            parts = [part for batch in batches for part in framed(batch)]
            return self._send(parts, table.num_rows, topic_name)

    def send_whole(self, batch: pa.RecordBatch, topic_name: str | None) -> TableResult:
        """Store a batch as one frame, so that all of it is there or nothing, whatever happens meanwhile."""
        check_columns(batch.schema.names, topic_name)
        with self._sender.in_flight.hold(check_whole(batch)):
            return self._send([batch] if batch.num_rows else [], batch.num_rows, topic_name)

    def _send(self, parts: list[pa.RecordBatch], row_count: int, topic_name: str | None) -> TableResult:
        now_ms = self._now_ms()
        # All of it is checked before the first topic is made.
        ends = list(accumulate(part.num_rows for part in parts))
        checked = [
            self._checked(part, topic_name, now_ms, end - part.num_rows)
            for part, end in zip(parts, ends, strict=True)
        ]
        _check_frames(checked)
        self._require_room(checked)
        batches = [(self._canonical(part, now_ms), part) for part in checked]
        if self._sender.tick_limit.is_on:
            self._check_tick_limit(batches, now_ms)
        done: list[TableResult] = []
        for batch, part in batches:
            first_row = sum(map(len, done))
            try:
                done.append(self._store_batch(batch, part, now_ms, first_row))
            except DiskFullError as full:
                if not done:
                    raise
                first_rows = self._joined(done)
                raise PartlyStoredError(
                    f"{full}. The first {first_row:,} of {row_count:,} rows are stored; "
                    "send the rest again when there is space",
                    first_rows,
                ) from full
            except IdInUseError as error:
                if not done:
                    raise
                stored = f"The first {first_row:,} of {row_count:,} rows are stored; send the rest again"
                raise IdInUseError(f"{error}. {stored}") from None
        return self._joined(done)

    def _check_tick_limit(self, batches: list[tuple[pa.RecordBatch, _Checked]], now_ms: int) -> None:
        """`TooManyRequestsError` if the rows that are not there already would crowd a tick."""
        with self._store.writer.lock:
            wanted, first_row = [], 0
            for batch, part in batches:
                fresh = find_repeats(self._store, batch, part.is_once, now_ms, first_row).fresh
                first_row += len(part)
                fresh = fresh[part.due[fresh] != NO_TIME_MS]
                wanted.append((batch.column("topic_id").to_numpy()[fresh], part.due[fresh]))
            self._sender.tick_limit.check(wanted)

    def _joined(self, parts: list[TableResult]) -> TableResult:
        if len(parts) == 1:
            return parts[0]
        none = np.empty(0, np.int64)
        return TableResult(
            self._broker_id,
            pa.concat_arrays([part.topics for part in parts]) if parts else pa.array([], pa.string()),
            pa.concat_arrays([part.ids for part in parts]) if parts else pa.array([], pa.string()),
            np.concatenate([part.seqs for part in parts]) if parts else none,
            np.concatenate([part.deliver_at_ms for part in parts]) if parts else none,
            np.concatenate([part.is_repeat for part in parts]) if parts else none.astype(np.bool_),
            _joined_notes(parts),
        )

    # -- columns ----------------------------------------------------------------------------------

    def _checked(
        self, batch: pa.RecordBatch, topic_name: str | None, now_ms: int, first_row: int
    ) -> _Checked:
        """The columns of a batch, each of which passed the checks of a single send."""
        count = batch.num_rows
        topics = texts(batch, "topic") if topic_name is None else pa.repeat(pa.scalar(topic_name), count)
        due, levels, notes = times_of(batch, self._settings, now_ms, first_row)
        groups = checked_texts(texts(batch, "message_group"), check_message_group)
        has_group = slices_of(groups)[2] > 0
        jitter = jitter_of_rows(batch, due, levels, groups, self._settings, now_ms, first_row)
        types = np.where(
            has_group, MessageType.FIFO, np.where(due != NO_TIME_MS, MessageType.DELAY, MessageType.NORMAL)
        )
        self._check_topics(topics, types)
        keys = checked_words(texts(batch, "key"), PROPERTIES_BYTES_MAX, check_key, IllegalKeyError)
        tags = checked_texts(texts(batch, "tag"), check_tag)
        properties = checked_texts(texts(batch, "properties"), check_property_text)
        check_named(tags, keys, properties)
        ids = checked_words(texts(batch, "id"), ID_CHARS_MAX, check_id, IllegalIdError)
        if jitter is not None:
            due += drawn_rows(ids, jitter, self._store.log.written_end, first_row)
        return _Checked(
            topics=topics,
            due=due,
            levels=levels,
            notes=notes,
            groups=groups,
            has_group=has_group,
            types=types.astype(np.uint8),
            ids=ids,
            tags=tags,
            keys=keys,
            is_once=onces_of(batch, keys),
            properties=properties,
            bodies=bodies_of(batch, self._settings),
        )

    def _check_topics(self, names: pa.Array, types: I64) -> None:
        encoded = names.dictionary_encode()
        which = encoded.indices.to_numpy()
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            check_topic_name(name)
            topic = self._store.indexes.topics.named(name)
            if topic is None:
                continue
            for kind in np.unique(types[which == index]).tolist():
                check_type(MessageType(kind), topic.name, topic.type)

    def _require_room(self, parts: list[_Checked]) -> None:
        """`DiskFullError` unless all of it can be stored: a send that will be refused makes no topic."""
        with self._store.writer.lock:
            self._store.writer.reserve([part.bytes_at_most for part in parts], sum(map(len, parts)))

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
            "level": part.levels,
            "flags": self._flags(part.due, part.levels, part.has_group, now_ms),
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

    def _flags(self, due: I64, levels: I64, has_group: Flags, now_ms: int) -> U8:
        is_timed = due != NO_TIME_MS
        on_level = levels > 0
        if self._sender.level_room() < int(on_level.sum()):
            on_level[:] = False
        near = is_timed & ~on_level & (due < now_ms + self._settings.lead_ms)
        if self._sender.near_room() < int(near.sum()):
            near[:] = False
        fifo = has_group & is_timed
        flags: U8 = (near * FLAG_NEAR | on_level * FLAG_LEVEL | fifo * FLAG_FIFO).astype(np.uint8)
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

    def _store_batch(self, batch: pa.RecordBatch, part: _Checked, now_ms: int, first_row: int) -> TableResult:
        with self._store.writer.lock:
            repeats = find_repeats(self._store, batch, part.is_once, now_ms, first_row)
            fresh = repeats.fresh
            ids = self._ids(batch.column("id"))
            batch = batch.set_column(0, SCHEMA.field(0), ids)
            if len(fresh) < batch.num_rows:
                batch = batch.take(pa.array(fresh))
            first_seq = self._store.indexes.ledger.next_seq
            if len(fresh):
                self._store.writer.put_batch(batch, now_ms)
        self._store.finish_written()
        seqs, due = repeats.seqs, repeats.due
        timed = fresh[due[fresh] != NO_TIME_MS]
        seqs[timed] = first_seq + np.arange(len(timed))
        flags = batch.column("flags").to_numpy().astype(np.int64)
        self._sender.hand_over(due[timed], first_seq, flags[due[fresh] != NO_TIME_MS])
        if part.notes is not None:
            self._sender.clamped_levels.add_rows(part.topics, part.notes, fresh)
        again = np.flatnonzero(repeats.same_as >= 0)
        earlier = repeats.same_as[again]
        seqs[again], due[again] = seqs[earlier], due[earlier]
        is_repeat = repeats.same_as != FRESH
        return TableResult(
            self._broker_id, part.topics, _ids_of(ids, repeats), seqs, due, is_repeat, part.notes
        )

    def _ids(self, given: pa.Array) -> pa.Array:
        """Given ids; made ones where none was given."""
        lengths = slices_of(given)[2]
        if not (lengths == 0).any():
            return given
        made = made_ids(self._broker_id, self._store.log.written_end, len(given))
        return pc.if_else(pa.array(lengths > 0), given, made) if (lengths > 0).any() else made


def _check_frames(parts: list[_Checked]) -> None:
    """`BodyTooLargeError` where texts made of numbers would take a frame over its bound."""
    if (longest := max((part.bytes_at_most for part in parts), default=0)) > FRAME_BYTES_MAX:
        raise BodyTooLargeError(
            f"a frame would have {longest} bytes, the limit is {FRAME_BYTES_MAX}; send fewer rows"
        )


def _joined_notes(parts: list[TableResult]) -> pa.Array | None:
    if all(part.notes is None for part in parts):
        return None
    empty = pa.scalar("")
    return pa.concat_arrays([pa.repeat(empty, len(p)) if p.notes is None else p.notes for p in parts])


def _ids_of(ids: pa.Array, repeats: Repeats) -> pa.Array:
    """The id of the message that each row is: its own, or that of the one it repeats."""
    again = np.flatnonzero(repeats.same_as >= 0)
    if not len(again) and not repeats.stored_ids:
        return ids
    texts_out = ids.to_pylist()
    for row, message_id in repeats.stored_ids.items():
        texts_out[row] = message_id
    for row, first in zip(again.tolist(), repeats.same_as[again].tolist(), strict=True):
        texts_out[row] = texts_out[first]
    return pa.array(texts_out, pa.string())
