"""The streaming query: source, step, sink. And the Spark session it runs in."""

from __future__ import annotations

import os
import re
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.pipeline.settings import PipelineSettings
from tidemill.pipeline.source import FORMAT_NAME, TimerSource
from tidemill.pipeline.step import step_function
from tidemill.pipeline.wire import OUTCOME_SCHEMA, spark_columns

# The heap is bounded apart from these. The serial collector is the smallest, has no trouble with values of a
# megabyte, and needs no cores of its own. Java only moves packed values about: compiling that fully
# took a third of the work of a start, and gains nothing afterwards.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:MaxMetaspaceSize=256m -XX:ReservedCodeCacheSize=96m -XX:MaxDirectMemorySize=256m"
)
_ATTEMPTS_MAX = 4
_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")


def open_session(settings: PipelineSettings) -> SparkSession:
    """A session for the timer alone: small, silent, without a user interface."""
    os.environ["PYSPARK_PYTHON"] = worker_python(settings.master)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(with_retries(settings.master))
    java_options = f'{_JAVA_OPTIONS} "-Djava.io.tmpdir={settings.temporary_directory}"'
    if python_path := os.environ.get("PYTHONPATH"):
        builder = builder.config("spark.executorEnv.PYTHONPATH", python_path)
    return (
        builder.appName("tidemill-timer")
        .config("spark.driver.memory", f"{settings.driver_memory_mb}m")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.executor.extraJavaOptions", java_options)
        .config("spark.executor.memory", f"{settings.executor_memory_mb}m")
        .config("spark.local.dir", str(settings.scratch_directory / "local"))
        .config("spark.sql.warehouse.dir", str(settings.scratch_directory / "warehouse"))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.worker.reuse", "true")
        .config("spark.python.daemon.module", "tidemill.pipeline.worker_daemon")
        .config("spark.sql.shuffle.partitions", str(settings.timer.shards))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 17))
        .config("spark.sql.streaming.pollingDelay", f"{settings.poll_ms}ms")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "16")
        .config("spark.task.maxFailures", str(_ATTEMPTS_MAX))
        .getOrCreate()
    )


def with_retries(master: str) -> str:
    """A `local` master gives a task one attempt by default; a dead worker must not end the query."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1] or 1},{_ATTEMPTS_MAX}]" if found else master


def worker_python(master: str) -> str:
    """The Python of the workers: our own, whatever is on the path; that of a cluster may be another."""
    if master.startswith("local"):
        return sys.executable
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def start_query(spark: SparkSession, settings: PipelineSettings) -> StreamingQuery:
    """Start the one query, with a fresh checkpoint: progress is in the shards' cursors."""
    spark.dataSource.register(TimerSource)
    options = settings.to_json()
    entries = spark.readStream.format(FORMAT_NAME).option("settings", options).load()
    outcomes = entries.mapInArrow(step_function(settings), spark_columns(OUTCOME_SCHEMA))
    return (
        outcomes.writeStream.format(FORMAT_NAME)
        .option("settings", options)
        .option("checkpointLocation", str(settings.scratch_directory / "checkpoint"))
        .queryName("tidemill-timer")
        .outputMode("append")
        .start()
    )
