"""What is pending, what was released, what is in a topic: as streams of Arrow batches, for volume.

Owns the three tables' columns. Reads a bounded part at a time, so a table of a hundred million rows costs no
more memory than a small one; what is asked for of the messages' own bytes is read frame by frame, and not at
all if no such column is wanted. A stream shows each part as it is when the stream gets there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.topic_admin import TopicAdmin
from tidemill.core.errors import RequestError
from tidemill.core.limits import MIB
from tidemill.core.model import NO_TIME_MS, Handle, Via
from tidemill.log.arrays import I64, U64, Rows
from tidemill.store.batch_read import columns_at, sizes_at
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

FOREVER_MS = 1 << 62
_ROWS = 1 << 16
_BODY_BYTES = 16 * MIB
_TIME = pa.timestamp("ms", "UTC")

PENDING = pa.schema(
    [
        ("topic", pa.string()),
        ("id", pa.string()),
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("stored_at", _TIME),
        ("deliver_at", _TIME),
        ("level", pa.int32()),
        ("queue", pa.int32()),
        ("size", pa.int64()),
        ("message_group", pa.string()),
        ("properties", pa.string()),
        ("body", pa.binary()),
        ("handle", pa.string()),
    ]
)
HISTORY = pa.schema(
    [
        ("topic", pa.string()),
        ("id", pa.string()),
        ("seq", pa.int64()),
        ("deliver_at", _TIME),
        ("released_at", _TIME),
        ("lateness_ms", pa.int64()),
        ("via", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
    ]
)
MESSAGES = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("message_group", pa.string()),
        ("properties", pa.string()),
        ("body", pa.binary()),
        ("born_at", _TIME),
        ("stored_at", _TIME),
        ("deliver_at", _TIME),
        ("released_at", _TIME),
        ("via", pa.string()),
    ]
)
TABLES = {"pending": PENDING, "history": HISTORY, "messages": MESSAGES}
_DEFAULT = {
    "pending": [n for n in PENDING.names if n not in ("message_group", "properties", "body", "handle")],
    "history": [n for n in HISTORY.names if n != "key"],
    "messages": MESSAGES.names,
}
# Columns that are in the messages' bytes, and what the message schema calls them.
_STORED = {
    "id": "id",
    "key": "keys",
    "tag": "tag",
    "message_group": "message_group",
    "properties": "properties",
    "body": "body",
    "born_at": "born_at_ms",
    "stored_at": "stored_at_ms",
}
_VIAS = pa.array([via.name.lower() for via in Via])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows and columns of a table are asked for."""

    table: str
    topic: str | None = None
    key: str | None = None
    from_ms: int = 0  # by the time they fall due (pending) or were released (history, messages)
    to_ms: int = FOREVER_MS
    columns: tuple[str, ...] = ()  # empty: those most people want
    offsets: dict[int, int] = field(default_factory=dict)  # messages: where each queue is read from

    def schema(self) -> pa.Schema:
        """The columns that come; `RequestError` for one that is not there."""
        if self.table not in TABLES:
            raise RequestError(f"there is no table {self.table!r}; there are {', '.join(TABLES)}")
        known = TABLES[self.table]
        names = self.columns or _DEFAULT[self.table]
        if unknown := sorted(set(names) - set(known.names)):
            raise RequestError(f"unknown columns {unknown}; {self.table} has {known.names}")
        return pa.schema([known.field(name) for name in names])


class TableViews:
    """Streams of batches for whoever reads in volume. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, broker_id: str) -> None:
        self._store = store
        self._topics = topics
        self._broker_id = broker_id

    def read(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The rows asked for. What is wrong with the request is raised at once, not while reading."""
        schema = wanted.schema()
        topics = [self._topics.require(wanted.topic)] if wanted.topic is not None else None
        if wanted.table == "pending":
            return self._pending(schema, wanted, topics)
        if wanted.table == "messages" and topics is None:
            raise RequestError("say which topic's messages are wanted")
        if wanted.key is not None:
            raise RequestError(f"{wanted.table} is chosen by time, not by key")
        return self._released(schema, wanted, topics or list(self._store.indexes.topics))

    # -- pending ----------------------------------------------------------------------------------

    def _pending(
        self, schema: pa.Schema, wanted: Wanted, topics: list[Topic] | None
    ) -> Iterator[pa.RecordBatch]:
        for seqs, rows in self._pending_parts(wanted, topics):
            for start in range(0, len(seqs), _ROWS):
                part = rows[start : start + _ROWS]
                own: dict[str, Any] = {
                    "topic": lambda part=part: self._topic_names(part["topic_id"]),
                    "seq": lambda part=seqs[start : start + _ROWS]: pa.array(part),
                    "deliver_at": lambda part=part: _times(part["deliver_at_ms"]),
                    "stored_at": lambda part=part: _times(part["stored_at_ms"]),
                    "level": lambda part=part: pa.array(part["level"].astype(np.int32)),
                    "queue": lambda part=part: pa.array(part["queue_id"].astype(np.int32)),
                    "size": lambda part=part: pa.array(part["size"].astype(np.int64)),
                }
                yield from self._batches(schema, part["place"].astype(np.uint64), own)

    def _pending_parts(self, wanted: Wanted, topics: list[Topic] | None) -> Iterator[tuple[I64, Rows]]:
        if wanted.key is None:
            topic_id = topics[0].id if topics is not None else None
            yield from self._store.scan_pending(topic_id, wanted.from_ms, wanted.to_ms)
            return
        with self._store.writer.lock:
            where = topics if topics is not None else list(self._store.indexes.topics)
            found = [s for topic in where for s in self._store.seqs_with_key(topic.id, wanted.key)]
            seqs = np.array(sorted(found), np.int64)
            rows = self._store.indexes.entries.take(seqs)
        inside = (rows["deliver_at_ms"] >= wanted.from_ms) & (rows["deliver_at_ms"] < wanted.to_ms)
        yield seqs[inside], rows[inside]

    def _topic_names(self, topic_ids: I64) -> pa.Array:
        distinct, which = np.unique(topic_ids, return_inverse=True)
        topics = [self._store.indexes.topics.by_id(topic_id) for topic_id in distinct.tolist()]
        names = pa.array([topic.name if topic is not None else "" for topic in topics], pa.string())
        return names.take(pa.array(which))

    # -- released and in a topic ------------------------------------------------------------------

    def _released(
        self, schema: pa.Schema, wanted: Wanted, topics: Sequence[Topic]
    ) -> Iterator[pa.RecordBatch]:
        queues = self._store.queues
        for topic in topics:
            for queue_id in range(topic.queue_count):
                queue = (topic.id, queue_id)
                first = max(queues.first_kept(queue), wanted.offsets.get(queue_id, 0))
                if wanted.from_ms > 0:
                    first = max(first, queues.offset_at_time(queue, wanted.from_ms))
                end = queues.end(queue)
                for start in range(first, end, _ROWS):
                    rows = queues.read(queue, start, min(end, start + _ROWS))
                    yield from self._released_part(schema, wanted, topic, queue_id, start, rows)

    def _released_part(
        self, schema: pa.Schema, wanted: Wanted, topic: Topic, queue_id: int, start: int, rows: Rows
    ) -> Iterator[pa.RecordBatch]:
        is_wanted = (rows["place"] > 0) & (rows["released_at_ms"] < wanted.to_ms)
        if wanted.table == "history":
            is_wanted &= rows["seq"] >= 0
        else:
            is_wanted &= rows["place"] >> np.uint64(16) >= np.uint64(self._store.log.head)
        chosen = np.flatnonzero(is_wanted)
        part = rows[chosen]
        late = part["released_at_ms"] - part["deliver_at_ms"]
        own: dict[str, Any] = {
            "topic": lambda: pa.repeat(pa.scalar(topic.name), len(part)),
            "seq": lambda: pa.array(part["seq"].astype(np.int64)),
            "deliver_at": lambda: _times(part["deliver_at_ms"]),
            "released_at": lambda: _times(part["released_at_ms"]),
            "lateness_ms": lambda: pa.array(late.astype(np.int64)),
            "via": lambda: _VIAS.take(pa.array(part["via"])),
            "queue": lambda: pa.repeat(pa.scalar(queue_id, pa.int32()), len(part)),
            "offset": lambda: pa.array(start + chosen),
        }
        yield from self._batches(schema, part["place"].astype(np.uint64), own)

    # -- both -------------------------------------------------------------------------------------

    def _batches(self, schema: pa.Schema, places: U64, own: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Batches of the columns asked for: those in `own` made there, the others read from the log."""
        if not len(places):
            return
        columns = {name: own[name]() for name in schema.names if name in own}
        has_handle = "handle" in schema.names
        stored = [name for name in _STORED if name in schema.names and name not in own]
        if has_handle:
            columns |= {name: own[name]() for name in ("topic", "seq")}
            stored += ["id"] if "id" not in stored else []
        ends = [len(places)]
        if "body" in stored:
            filled = np.cumsum(sizes_at(self._store, places)) // _BODY_BYTES
            ends = [*(np.flatnonzero(np.diff(filled)) + 1).tolist(), len(places)]
        start = 0
        for end in ends:
            part = {name: column.slice(start, end - start) for name, column in columns.items()}
            if stored:
                read = columns_at(self._store, places[start:end], [_STORED[name] for name in stored])
                part |= dict(zip(stored, read, strict=True))
            if has_handle:
                part["handle"] = self._handles(part)
            arrays = [part[field.name].cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            start = end

    def _handles(self, part: dict[str, pa.Array]) -> pa.Array:
        rows = zip(*(part[name].to_pylist() for name in ("topic", "id", "seq")), strict=True)
        return pa.array([str(Handle(self._broker_id, topic, i or "", seq)) for topic, i, seq in rows])


def _times(ms: I64) -> pa.Array:
    """Times of an Arrow column; null where there is none."""
    times = pa.array(ms.astype(np.int64))
    return pc.if_else(pa.array(ms != NO_TIME_MS), times, None).cast(_TIME)
