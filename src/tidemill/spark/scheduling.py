"""DataFrames and streams written to the broker: each row a message, scheduled once.

Owns the tasks' work: gather Spark's batches into frames and store each whole. A task that fails has stored
some frames; Spark runs it again, and rows that are already stored are recognised by their ids (see
`schedule_columns.py`). There is nothing to commit or to abort in the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from tidemill.core.limits import FRAME_ROWS_MAX, MIB
from tidemill.spark.options import Place
from tidemill.spark.schedule_columns import SchedulePlan, message_table

_FRAME_BYTES = 12 * MIB
# Spark's id of a micro-batch; the same when the batch is run again, also after a restart.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class Stored(WriterCommitMessage):
    """What a task did."""

    rows: int
    repeats: int  # of them were there already


class _Scheduling:
    def __init__(self, place: Place, plan: SchedulePlan) -> None:
        self._place = place
        self._plan = plan
        self._run = os.urandom(6).hex()


class ScheduleWriter(_Scheduling, DataSourceArrowWriter):
    """Made once for a job; travels to its tasks."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return schedule(iterator, self._place, self._plan, self._run)


class ScheduleStreamWriter(_Scheduling, DataSourceStreamArrowWriter):
    """Made for a query; its run is the micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return schedule(iterator, self._place, self._plan, _micro_batch() or self._run)


def schedule(batches: Iterable[pa.RecordBatch], place: Place, plan: SchedulePlan, run: str) -> Stored:
    """Store all batches, frame by frame."""
    rows = repeats = 0
    with place.connect() as client:
        for table in framed(batches):
            stored = client.tables.store(message_table(table, plan, run), topic=plan.topic)
            rows += len(stored)
            repeats += stored.table.column("is_repeat").to_numpy().sum()
    return Stored(rows, int(repeats))


def framed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of all batches in tables that fit a frame, as full as possible."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _pieces(batch):
            if gathered and (rows + piece.num_rows > FRAME_ROWS_MAX or size + piece.nbytes > _FRAME_BYTES):
                yield pa.Table.from_batches(gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if rows:
        yield pa.Table.from_batches(gathered)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices that fit a frame each."""
    if batch.num_rows > 1 and (batch.num_rows > FRAME_ROWS_MAX or batch.nbytes > _FRAME_BYTES):
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    else:
        yield batch


def _micro_batch() -> str:
    context = TaskContext.get()
    named = [context.getLocalProperty(name) for name in (_QUERY, _BATCH)] if context is not None else []
    return "-".join(text for text in named if text) if all(named) else ""
