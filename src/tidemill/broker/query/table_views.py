"""What is pending, what was released, what is in the topics: as streams of Arrow batches, for volume.

Reads a bounded part at a time, so a table of a hundred million rows costs no more memory than a small one.
Conditions are tried on what the indexes know before a message's own bytes are read; those are read frame by
frame, and not at all if no such column is wanted. A stream shows each part as it is when the stream gets
there. The tables' columns are in `table_schemas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.query.table_conditions import all_true
from tidemill.broker.query.table_schemas import QUEUES, STORED, TIME, Wanted
from tidemill.core.errors import RequestError
from tidemill.core.limits import MIB
from tidemill.core.model import NO_TIME_MS, NOT_COUNTED, Handle, Via
from tidemill.log.arrays import I64, U16, U64, Rows
from tidemill.store.batch_read import columns_at, sizes_at
from tidemill.store.message_store import MessageStore
from tidemill.store.releasable_since import could_go_ms
from tidemill.store.topics import Topic

PARTS_MAX = 1024
_PART_ROWS_MIN = 1 << 16  # a smaller part is not worth a reader of its own
_ROWS = 1 << 16
_BODY_BYTES = 16 * MIB

Columns = dict[str, Callable[[], pa.Array]]  # made when they are needed
MakeColumns = Callable[[Rows, I64], Columns]  # of index rows and their numbers: seqs, or queue offsets


class TableViews:
    """Streams of batches for large reads. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, broker_id: str) -> None:
        self._store = store
        self._topics = topics
        self._broker_id = broker_id

    def read(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The rows asked for. What is wrong with the request is raised at once, not while reading."""
        schema = wanted.schema()
        topics = self._topics_of(wanted)
        if wanted.table == "pending":
            return self._pending(schema, wanted, topics)
        if wanted.key is not None:
            raise RequestError(f"{wanted.table} is chosen by time, not by key")
        if wanted.table == "queues":
            return iter([self._queues(wanted, topics).select(schema.names)])
        return self._released(schema, wanted, topics)

    def _topics_of(self, wanted: Wanted) -> list[Topic]:
        """The topics whose rows may come. One asked for must be there; one in a condition need not."""
        if wanted.topic is not None:
            return [self._topics.existing(wanted.topic)]
        if wanted.only_topic is None:
            return list(self._store.topics)
        topic = self._store.topics.named(wanted.only_topic)
        return [] if topic is None else [topic]

    def _queue_ranges(self, wanted: Wanted, topics: list[Topic]) -> Iterator[tuple[Topic, int, int, int]]:
        """Topic, queue and the offsets `[first, end)` of it in which every wanted row is."""
        queues = self._store.queues
        from_ms, _ = wanted.time_range()
        for topic in topics:
            for queue_id in filter(wanted.takes_queue, range(topic.queue_count)):
                queue = (topic.id, queue_id)
                low, high = wanted.offset_range(queue_id)
                first, end = max(queues.head(queue), low), min(queues.end(queue), high)
                if from_ms > 0 and first < end:
                    first = max(first, queues.offset_at_time(queue, from_ms))
                if first < end:
                    yield topic, queue_id, first, end

    # -- parts for several readers, each a request of its own --------------------------------------

    def parts(self, wanted: Wanted, count: int) -> list[Wanted]:
        """About `count` requests that together ask for the same; at least one.

        What waits is cut by seq, what was released by queue and offset. The parts hold every row once; their
        ends are fixed now, so what comes later is in none of them.
        """
        wanted.schema()
        if wanted.table == "pending":
            return [wanted] if wanted.only_key is not None else self._parts_by_seq(wanted, count)
        return [wanted] if wanted.table == "queues" else self._parts_by_queue(wanted, count)

    def _parts_by_seq(self, wanted: Wanted, count: int) -> list[Wanted]:
        ledger = self._store.ledger
        low, high = wanted.seq_range()
        first, end = max(low, ledger.head_seq), min(high, ledger.next_seq)
        each = max(_PART_ROWS_MIN, -(-(end - first) // count))
        bounds = [(start, min(end, start + each)) for start in range(first, end, each)] or [(end, end)]
        return [replace(wanted, from_seq=start, to_seq=stop) for start, stop in bounds]

    def _parts_by_queue(self, wanted: Wanted, count: int) -> list[Wanted]:
        ranges = list(self._queue_ranges(wanted, self._topics_of(wanted)))
        total = sum(end - first for _, _, first, end in ranges)
        each = max(_PART_ROWS_MIN, -(-total // count))
        parts: list[Wanted] = []
        rows_left = 0
        for topic, queue_id, first, end in ranges:
            for start in range(first, end, each):
                stop = min(end, start + each)
                last = parts[-1] if parts else None
                # Small queues of one topic share a part.
                if last is not None and last.topic == topic.name and stop - start <= rows_left:
                    parts[-1] = replace(
                        last,
                        queues=(*last.queues, queue_id),
                        offsets={**last.offsets, queue_id: start},
                        until={**last.until, queue_id: stop},
                    )
                else:
                    rows_left = each
                    parts.append(
                        replace(
                            wanted,
                            topic=topic.name,
                            queues=(queue_id,),
                            offsets={queue_id: start},
                            until={queue_id: stop},
                        )
                    )
                rows_left -= stop - start
        return parts or [replace(wanted, to_ms=0)]

    # -- pending ----------------------------------------------------------------------------------

    def _pending(self, schema: pa.Schema, wanted: Wanted, topics: list[Topic]) -> Iterator[pa.RecordBatch]:
        for seqs, rows in self._pending_parts(wanted, topics):
            for start in range(0, len(seqs), _ROWS):
                part = slice(start, start + _ROWS)
                yield from self._batches(schema, wanted, rows[part], seqs[part], self._pending_columns)

    def _pending_parts(self, wanted: Wanted, topics: list[Topic]) -> Iterator[tuple[I64, Rows]]:
        (from_ms, to_ms), (from_seq, to_seq) = wanted.time_range(), wanted.seq_range()
        if wanted.only_key is None:
            topic_id = topics[0].id if topics and wanted.only_topic is not None else None
            if topics:
                yield from self._store.scan_pending(topic_id, from_ms, to_ms, from_seq, to_seq)
            return
        with self._store.read():
            found = [s for topic in topics for s in self._store.seqs_with_key(topic.id, wanted.only_key)]
            seqs = np.array(sorted(s for s in found if from_seq <= s < to_seq), np.int64)
            rows = self._store.entries.take(seqs)
        inside = (rows["deliver_at_ms"] >= from_ms) & (rows["deliver_at_ms"] < to_ms)
        yield seqs[inside], rows[inside]

    def _pending_columns(self, rows: Rows, seqs: I64) -> Columns:
        return {
            "topic": lambda: self._topic_names(rows["topic_id"]),
            "seq": lambda: pa.array(seqs),
            "deliver_at": lambda: _times(rows["deliver_at_ms"]),
            "stored_at": lambda: _times(rows["stored_at_ms"]),
            "level": lambda: pa.array(rows["level"].astype(np.int32)),
            "queue": lambda: pa.array(rows["queue_id"].astype(np.int32)),
            "size": lambda: pa.array(rows["size"].astype(np.int64)),
        }

    def _topic_names(self, topic_ids: I64) -> pa.Array:
        distinct, which = np.unique(topic_ids, return_inverse=True)
        topics = [self._store.topics.by_id(topic_id) for topic_id in distinct.tolist()]
        names = pa.array([topic.name if topic is not None else "" for topic in topics], pa.string())
        return names.take(pa.array(which))

    # -- released and in a topic ------------------------------------------------------------------

    def _released(self, schema: pa.Schema, wanted: Wanted, topics: list[Topic]) -> Iterator[pa.RecordBatch]:
        for topic, queue_id, first, end in self._queue_ranges(wanted, topics):
            queue, make = (topic.id, queue_id), self._released_columns(topic.name, queue_id)
            for start in range(first, end, _ROWS):
                rows = self._store.queues.read(queue, start, min(end, start + _ROWS))
                chosen = np.flatnonzero(self._is_released(wanted, rows))
                yield from self._batches(schema, wanted, rows[chosen], start + chosen, make)

    def _is_released(self, wanted: Wanted, rows: Rows) -> Any:
        is_wanted = (rows["place"] > 0) & (rows["released_at_ms"] < wanted.time_range()[1])
        if wanted.table == "history":
            return is_wanted & (rows["seq"] >= 0)
        return is_wanted & (rows["place"] >> np.uint64(16) >= np.uint64(self._store.log.head))

    def _released_columns(self, topic_name: str, queue_id: int) -> MakeColumns:
        def make(rows: Rows, offsets: I64) -> Columns:
            return {
                "topic": lambda: pa.repeat(pa.scalar(topic_name), len(rows)),
                "seq": lambda: pa.array(rows["seq"].astype(np.int64)),
                "deliver_at": lambda: _times(rows["deliver_at_ms"]),
                "released_at": lambda: _times(rows["released_at_ms"]),
                "lateness_ms": lambda: self._lateness(rows),
                "via": lambda: _vias().take(pa.array(rows["via"])),
                "runner": lambda: _runners().take(pa.array(rows["via"])),
                "rolls": lambda: _rolls(rows["placements"]),
                "queue": lambda: pa.repeat(pa.scalar(queue_id, pa.int32()), len(rows)),
                "offset": lambda: pa.array(offsets),
            }

        return make

    def _lateness(self, rows: Rows) -> pa.Array:
        """By `releasable_since.py`; from the due time alone where the entry was cut with the head."""
        since: I64 = rows["deliver_at_ms"].astype(np.int64)
        store = self._store
        with store.read():
            known = np.flatnonzero(rows["seq"] >= store.ledger.head_seq)
            since[known] = could_go_ms(store.log, store.entries.take(rows["seq"][known]))
        # The release that took a message is stamped with its own step's time, which may be a little earlier.
        late: I64 = rows["released_at_ms"] - np.minimum(since, rows["released_at_ms"])
        return pa.array(late.astype(np.int64))

    def _queues(self, wanted: Wanted, topics: list[Topic]) -> pa.RecordBatch:
        queues, head = self._store.queues, self._store.log.head
        found = [
            (topic.name, queue_id, queues.first_live((topic.id, queue_id), head), end)
            for topic in topics
            for queue_id in filter(wanted.takes_queue, range(topic.queue_count))
            for end in [queues.end((topic.id, queue_id))]
        ]
        columns = zip(*found, strict=True) if found else [[] for _ in QUEUES]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, QUEUES, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=QUEUES)
        made: Columns = {name: lambda name=name: batch.column(name) for name in QUEUES.names}  # type: ignore[misc]
        return batch.filter(pa.array(all_true(wanted.where, made, batch.num_rows)))

    # -- both -------------------------------------------------------------------------------------

    def _batches(
        self, schema: pa.Schema, wanted: Wanted, rows: Rows, numbers: I64, make: MakeColumns
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the conditions leave, with the columns asked for: made from the index, or read."""
        made = make(rows, numbers)
        conditions = [c for c in wanted.where if c.column in made]
        others = [c for c in wanted.where if c.column not in made]
        for stage, reads in ((conditions, False), (others, True)):
            if stage and len(rows):
                columns = (
                    self._read_columns(rows, numbers, make, [c.column for c in stage]) if reads else made
                )
                kept = np.flatnonzero(all_true(stage, columns, len(rows)))
                if len(kept) < len(rows):
                    rows, numbers = rows[kept], numbers[kept]
                    made = make(rows, numbers)
        if len(rows):
            yield from self._made_batches(schema, rows["place"].astype(np.uint64), made)

    def _read_columns(self, rows: Rows, numbers: I64, make: MakeColumns, names: list[str]) -> Columns:
        """Columns that the index does not have, whole, to try conditions on."""
        places = rows["place"].astype(np.uint64)
        (table,) = self._made_batches(_nullable(names), places, make(rows, numbers))
        return {name: lambda name=name: table.column(name) for name in names}  # type: ignore[misc]

    def _made_batches(self, schema: pa.Schema, places: U64, own: Columns) -> Iterator[pa.RecordBatch]:
        """Batches of the columns asked for: those in `own` made there, the others read from the log."""
        columns = {name: own[name]() for name in schema.names if name in own}
        has_handle = "handle" in schema.names
        stored = [name for name in STORED if name in schema.names and name not in own]
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
            yield self._made_batch(schema, places[start:end], part, stored)
            start = end

    def _made_batch(
        self, schema: pa.Schema, places: U64, part: dict[str, pa.Array], stored: list[str]
    ) -> pa.RecordBatch:
        # On its own, so that while a reader takes its time nothing of the making is kept but the batch.
        if stored:
            read = columns_at(self._store, places, [STORED[name] for name in stored])
            part = part | dict(zip(stored, read, strict=True))
        if "handle" in schema.names:
            part["handle"] = self._handles(part)
        arrays = [part[field.name].cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _handles(self, part: dict[str, pa.Array]) -> pa.Array:
        rows = zip(*(part[name].to_pylist() for name in ("topic", "id", "seq")), strict=True)
        return pa.array([str(Handle(self._broker_id, topic, i or "", seq)) for topic, i, seq in rows])


def _nullable(names: list[str]) -> pa.Schema:
    """A schema of stored columns in which the tables agree on every type."""
    kinds = {"born_at": TIME, "stored_at": TIME, "body": pa.binary()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in dict.fromkeys(names)])


def _rolls(placements: U16) -> pa.Array:
    """Rolls of an Arrow column; null where not counted."""
    return pa.array(placements.astype(np.int32) - 1, mask=placements == NOT_COUNTED)


def _times(ms: I64) -> pa.Array:
    """Times of an Arrow column; null where there is none."""
    times = pa.array(ms.astype(np.int64))
    return pc.if_else(pa.array(ms != NO_TIME_MS), times, None).cast(TIME)


# Made on first use: an Arrow array made from a Python list imports pandas, which takes long.
@cache
def _vias() -> pa.Array:
    return pa.array([via.name.lower() for via in Via])


@cache
def _runners() -> pa.Array:
    return pa.array([via.name.lower() if via in (Via.EMBEDDED, Via.SPARK) else None for via in Via])
