"""A topic as a streaming source: the offset of each queue, and the ranges between two of them.

Owns what Spark's checkpoint holds: `{"0": 1200, "1": 950}`, the next offset of each queue. Reading removes
nothing from the topic and moves no consumer group, so a range can be read again after a failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import RequestError
from tidemill.spark.options import Place
from tidemill.spark.reading import TicketPartition, spark_batches

Offsets = dict[str, int]
EARLIEST, LATEST = "earliest", "latest"
_LOOK_EVERY_S = 0.1  # Spark polls often; not every poll needs a request
_ROWS_PER_PART = 1 << 18


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The options of a streaming read. Picklable."""

    topic: str
    starting: str | Offsets = EARLIEST
    rows_max: int = 0  # of one micro-batch; 0: all there are
    skips_expired: bool = False


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, reads on the workers."""

    def __init__(self, place: Place, plan: StreamPlan, schema: StructType) -> None:
        self._place = place
        self._plan = plan
        self._schema = schema
        self._client: Client | None = None  # the driver's alone, made when it is needed
        self._looked_s: float | None = None
        self._seen: tuple[Offsets, Offsets] = ({}, {})
        self._final: Offsets | None = None  # where a run over what is available now ends

    # -- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:
        firsts, ends = self._look()
        if isinstance(self._plan.starting, dict):
            if unknown := sorted(set(self._plan.starting) - set(ends)):
                raise RequestError(f"topic {self._plan.topic!r} has no queues {unknown}")
            return firsts | self._plan.starting
        return firsts if self._plan.starting == EARLIEST else ends

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._plan.rows_max) if self._plan.rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = self._look()[1]

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        firsts, ends = self._look_sometimes()
        ends = self._final if self._final is not None else ends
        self._check_expired(start, firsts)
        waiting = {queue: max(0, end - start.get(queue, 0)) for queue, end in ends.items()}
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(waiting.values())
        taken = dict(start)
        # Shared out evenly, the emptiest queue first, so that none is left behind.
        for left, queue in enumerate(sorted(waiting, key=waiting.__getitem__)):
            share = min(waiting[queue], -(-room // (len(waiting) - left)))
            taken[queue] = start.get(queue, 0) + share
            room -= share
        return taken

    def reportLatestOffset(self) -> Offsets:
        return self._look_sometimes()[1]

    def _check_expired(self, start: Offsets, firsts: Offsets) -> None:
        gone = {queue: (at, firsts[queue]) for queue, at in start.items() if at < firsts.get(queue, 0)}
        if gone and not self._plan.skips_expired:
            queue, (at, first) = next(iter(gone.items()))
            raise RequestError(
                f"messages {at} to {first - 1} of queue {queue} of topic {self._plan.topic!r} are past the "
                "broker's retention and were not read yet; option skipExpired=true goes on without them"
            )

    def _look_sometimes(self) -> tuple[Offsets, Offsets]:
        if self._looked_s is None or stopwatch_s() - self._looked_s >= _LOOK_EVERY_S:
            return self._look()
        return self._seen

    def _look(self) -> tuple[Offsets, Offsets]:
        """First and end offset of each queue, from the broker."""
        if self._client is None:
            self._client = self._place.connect()
        rows = self._client.tables.read({"table": "queues", "topic": self._plan.topic})
        queues = [str(queue) for queue in rows["queue"].to_pylist()]
        firsts, ends = (
            dict(zip(queues, rows[name].to_pylist(), strict=True)) for name in ("first_offset", "end_offset")
        )
        self._looked_s, self._seen = stopwatch_s(), (firsts, ends)
        return firsts, ends

    # -- rows -------------------------------------------------------------------------------------

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        parts: list[InputPartition] = []
        for queue, stop in end.items():
            first = start.get(queue, 0)
            for at in range(first, stop, _ROWS_PER_PART):
                request = {
                    "table": "messages",
                    "topic": self._plan.topic,
                    "columns": self._schema.fieldNames(),
                    "queues": [int(queue)],
                    "offsets": {queue: at},
                    "until": {queue: min(stop, at + _ROWS_PER_PART)},
                }
                parts.append(TicketPartition(json.dumps(request).encode()))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TicketPartition)
        yield from spark_batches(self._place, partition.ticket, self._schema)

    def commit(self, end: Offsets) -> None:
        """Nothing to do: the checkpoint holds the progress."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
