"""Cancels the messages that a DataFrame names, on the workers, with a definite answer for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

from tidemill.core.errors import RequestError
from tidemill.core.limits import FRAME_ROWS_MAX
from tidemill.spark.options import Options, Place

_NAMES = ["topic", "id", "seq"]
_COUNTED = "answer string, messages long"

Batches = Iterable[pa.RecordBatch]


def cancel(messages: DataFrame, **options: str) -> dict[str, int]:
    """Cancel each row's message, named by `topic`, `id` and `seq` as `pending` has them.

    Returns how many were cancelled, released (too late), already-cancelled (also by a task that Spark
    repeated) or unknown. Options as for the data sources.
    """
    place = Options(options, "cancel", ()).place()
    if missing := [name for name in _NAMES if name not in messages.columns]:
        raise RequestError(f"a cancel needs the columns {', '.join(_NAMES)}; {', '.join(missing)} is missing")
    if not isinstance(messages.schema["seq"].dataType, LongType | IntegerType):
        raise RequestError("column seq must hold whole numbers, as in the table pending")
    counted = messages.select(*_NAMES).mapInArrow(_canceller(place), _COUNTED)
    rows = counted.groupBy("answer").agg(F.sum("messages").alias("messages")).collect()
    return {row["answer"]: row["messages"] for row in rows}


def _canceller(place: Place) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        with place.connect() as client:
            for table in _gathered(batches):
                counts = pc.value_counts(client.tables.cancel(table))
                yield pa.record_batch({"answer": counts.field("values"), "messages": counts.field("counts")})

    return run


def _gathered(batches: Batches) -> Iterator[pa.Table]:
    """Spark's batches, joined into larger ones: each is a frame and a sync."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= FRAME_ROWS_MAX:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting).combine_chunks()
