"""The streaming query: source, step, sink. And the Spark session it runs in."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.pipeline.settings import PipelineSettings
from tidemill.pipeline.source import FORMAT_NAME, TimerSource
from tidemill.pipeline.step import step_function
from tidemill.pipeline.wire import OUTCOME_COLUMNS

_POLLING_DELAY_MS = 500


def open_session(settings: PipelineSettings) -> SparkSession:
    """A session for the timer alone: small, silent, without a user interface."""
    # Workers must run the same Python as the driver, whatever is on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master(settings.master)
        .appName("tidemill-timer")
        .config("spark.driver.memory", f"{settings.driver_memory_mb}m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.worker.reuse", "true")
        .config("spark.sql.shuffle.partitions", str(settings.shards))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 17))
        .config("spark.sql.streaming.pollingDelay", f"{_POLLING_DELAY_MS}ms")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "4")
        .config("spark.task.maxFailures", "4")
        .getOrCreate()
    )


def start_query(spark: SparkSession, settings: PipelineSettings, checkpoint: Path) -> StreamingQuery:
    """Start the one query, with a fresh checkpoint: progress is in the shards' cursors."""
    spark.dataSource.register(TimerSource)
    options = settings.to_json()
    entries = spark.readStream.format(FORMAT_NAME).option("settings", options).load()
    outcomes = entries.mapInArrow(step_function(settings), OUTCOME_COLUMNS)
    return (
        outcomes.writeStream.format(FORMAT_NAME)
        .option("settings", options)
        .option("checkpointLocation", str(checkpoint))
        .queryName("tidemill-timer")
        .outputMode("append")
        .start()
    )


def fresh_checkpoint() -> Path:
    return Path(tempfile.mkdtemp(prefix="tidemill-spark-"))
