"""The sink: reports to the broker what each step did, through the progress file (`timer/progress.py`).

It is for metrics and status: what counts is in the shards' cursors and ready files, which the step itself
wrote in their safe order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tidemill.log.disk import RealDisk
from tidemill.pipeline.settings import PipelineSettings
from tidemill.timer.progress import note_progress


class ShardOutcomes(WriterCommitMessage):
    """The outcome rows of one task. Picklable."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows


class ProgressSink(DataSourceStreamArrowWriter):
    """Writes down what each micro-batch did."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return ShardOutcomes([row for batch in iterator for row in batch.to_pylist()])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        rows = [row for message in messages if isinstance(message, ShardOutcomes) for row in message.rows]
        note_progress(RealDisk(), self._settings.timer_directory, batchId, rows)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: a step that was not finished leaves its cursor where it was."""
