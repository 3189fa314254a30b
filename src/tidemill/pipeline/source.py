"""The source: which step to take next, and the entries each shard shall absorb in it.

Owns the translation between the broker's target file and Spark's offsets. `latestOffset` stays where it is
until a step is called for (the idle rule), so a quiet broker costs nothing. One partition for each shard;
each reads from its shard's own cursor, so an older, newer or lost Spark checkpoint does no harm.

Invariant: nothing here decides by a clock; the time is the broker's, from the target file. How long the
entries took to read is measured for the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import CorruptionError
from tidemill.log.disk import RealDisk
from tidemill.pipeline.settings import PipelineSettings
from tidemill.pipeline.sink import ProgressSink
from tidemill.pipeline.wire import ENTRY_SCHEMA, NO_ENTRIES, Order, order_batch, spark_columns
from tidemill.store.entry_files import EntryFiles
from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR
from tidemill.store.upkeep.memory import give_back_memory
from tidemill.timer.cursor import Cursor
from tidemill.timer.far_scan import FarScan, call_at
from tidemill.timer.idle_rule import target_tick
from tidemill.timer.ready_format import Runner
from tidemill.timer.stages.admit import admit
from tidemill.timer.target import Target, read_cursor, read_target, shard_directory

FORMAT_NAME = "tidemill_timer"
_SETTINGS_OPTION = "settings"
_ROWS_PER_PIECE = 1 << 15  # looked at for one row that goes through Spark: below a megabyte


class TimerSource(DataSource):
    """`spark.readStream.format("tidemill_timer").option("settings", …)`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        return spark_columns(ENTRY_SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TimerStreamReader(PipelineSettings.from_json(self.options[_SETTINGS_OPTION]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ProgressSink(PipelineSettings.from_json(self.options[_SETTINGS_OPTION]))


@dataclass(frozen=True, slots=True)
class StepOffset:
    """How far the shards shall go. Only a target: each shard works from its own durable cursor."""

    number: int = 0
    epoch: int = 0
    seq: int = 0
    tick: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, int]) -> StepOffset:
        return cls(**fields)


class ShardPartition(InputPartition):
    """One shard's part of a step. Picklable."""

    def __init__(self, shard: int, offset: StepOffset) -> None:
        super().__init__((shard, offset))
        self.shard = shard
        self.offset = offset


class TimerStreamReader(DataSourceStreamReader):
    """Plans steps on the driver, reads entries on the workers."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._far_scan: FarScan | None = None

    def initialOffset(self) -> dict[str, Any]:
        return StepOffset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._settings.limits.rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        previous = StepOffset.from_dict(start)
        if previous.number == 0:
            # An empty step first: it starts the Python workers before a deadline depends on them.
            return StepOffset(number=1).to_dict()
        target = self._target()
        if target is None or not self._is_called_for(target):
            return start
        tick = target_tick(target.now_ms, self._settings.lead_ms, self._settings.timer.tick_ms)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.limits.rows_max
        first_seq = min(cursor.seq for cursor in self._cursors())
        seq = min(target.synced_end_seq, max(first_seq, self._files().head_seq) + rows_max)
        return StepOffset(previous.number + 1, target.epoch, seq, tick).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        offset = StepOffset.from_dict(end)
        return [ShardPartition(shard, offset) for shard in range(self._settings.timer.shards)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShardPartition)
        settings, offset, files = self._settings, partition.offset, self._files()
        cursor = (
            read_cursor(RealDisk(), shard_directory(settings.timer_directory, partition.shard)) or Cursor()
        )
        first = max(cursor.seq, files.head_seq)
        end = max(first, min(offset.seq, first + settings.limits.rows_max))
        order = Order(partition.shard, offset.epoch, offset.seq, offset.tick, first, end)
        if first == end:
            yield order_batch(order, NO_ENTRIES)
        for start in range(first, end, _ROWS_PER_PIECE):
            began_s = stopwatch_s()
            rows = files.rows(start, min(end, start + _ROWS_PER_PIECE))
            piece = admit(rows, start, partition.shard, settings.timer.shards, FLAG_NEAR | FLAG_LEVEL)
            yield order_batch(order, piece, stopwatch_s() - began_s)
        give_back_memory()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the shards' cursors are the progress."""

    def _target(self) -> Target | None:
        """The broker's target, while Spark is the timer runner."""
        try:
            target = read_target(RealDisk(), self._settings.timer_directory)
        except CorruptionError:
            return None
        return target if target is not None and target.runner is Runner.SPARK else None

    def _is_called_for(self, target: Target) -> bool:
        if self._far_scan is None:
            self._far_scan = FarScan(self._files())
        lead_ms, limits, tick_ms = self._settings.lead_ms, self._settings.limits, self._settings.timer.tick_ms
        call = call_at(self._cursors(), self._far_scan, target, lead_ms, tick_ms, limits.rows_max)
        return call.is_called_for

    def _cursors(self) -> list[Cursor]:
        disk, directory = RealDisk(), self._settings.timer_directory
        return [
            read_cursor(disk, shard_directory(directory, shard)) or Cursor()
            for shard in range(self._settings.timer.shards)
        ]

    def _files(self) -> EntryFiles:
        return EntryFiles(RealDisk(), self._settings.entries_directory, self._settings.entry_chunk_rows)
