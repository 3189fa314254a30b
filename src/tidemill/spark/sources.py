"""The data sources `tidemill`, `tidemill_pending` and `tidemill_history`, and `register`, which adds them.

Owns which options each takes and what they mean. Each process that needs a source creates it anew, so it
holds nothing but its options, and the broker's settings from the environment in which it was registered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidemill.core.errors import RequestError
from tidemill.spark.options import Options, Place, own_environment
from tidemill.spark.reading import TableReader, check_schema, table_columns
from tidemill.spark.schedule_columns import SchedulePlan, check_schedule
from tidemill.spark.scheduling import ScheduleStreamWriter, ScheduleWriter
from tidemill.spark.streaming import EARLIEST, LATEST, StreamPlan, TopicStreamReader

_KNOWN = "DATA_SOURCE_ALREADY_EXISTS"
_PARTS, _PARTS_MAX = 8, 1024
_ROWS_MAX = 1 << 40
_READ = ("topic", "columns", "where", "parts")
_BATCH_READ = (*_READ, "startingOffsets", "endingOffsets")
_STREAM_READ = ("topic", "columns", "startingOffsets", "maxRowsPerBatch", "skipExpired")
_WRITE = ("topic", "once", "job", "jitter")
_JOB = re.compile(r"[A-Za-z0-9_.-]{1,40}")


class _TableSource(DataSource):
    """A table of the broker, to be read."""

    table = ""
    read_options: tuple[str, ...] = _READ
    environment: Mapping[str, str] | None = None  # see `register`

    def _options(self, names: tuple[str, ...]) -> Options:
        return Options(self.options, self.name(), names, self.environment)

    def schema(self) -> StructType:
        # Whether it is for a batch or a stream is not known here.
        names = tuple(dict.fromkeys((*self.read_options, *_STREAM_READ, *_WRITE)))
        options = self._options(names)
        return table_columns(options.place(), self.table, options.words("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(self.read_options)
        place = options.place()
        check_schema(place, self.table, schema)
        request: dict[str, object] = {"table": self.table, "topic": options.text("topic") or None}
        request |= {
            name: options.offsets(option)
            for name, option in (("offsets", "startingOffsets"), ("until", "endingOffsets"))
            if options.text(option) not in ("", EARLIEST, LATEST)
        }
        if options.text("where"):
            request["where"] = options.conditions("where")
        return TableReader(place, request, schema, options.number("parts", _PARTS, _PARTS_MAX))


class PendingSource(_TableSource):
    """`spark.read.format("tidemill_pending")`: what waits."""

    table = "pending"

    @classmethod
    def name(cls) -> str:
        return "tidemill_pending"


class HistorySource(_TableSource):
    """`spark.read.format("tidemill_history")`: each release, how late it was and who handed it over."""

    table = "history"

    @classmethod
    def name(cls) -> str:
        return "tidemill_history"


class TopicSource(_TableSource):
    """`format("tidemill")`: reads what is in topics, and schedules what is written."""

    table = "messages"
    read_options = _BATCH_READ

    @classmethod
    def name(cls) -> str:
        return "tidemill"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options(_STREAM_READ)
        place, topic, starting = options.place(), options.text("topic"), options.text("startingOffsets")
        if not topic:
            raise RequestError("a stream is of one topic: name it by the option `topic`")
        check_schema(place, self.table, schema)
        plan = StreamPlan(
            topic,
            starting.lower() or EARLIEST
            if starting.lower() in ("", EARLIEST, LATEST)
            else options.offsets("startingOffsets"),
            options.number("maxRowsPerBatch", 0, _ROWS_MAX),
            options.is_on("skipExpired", False),
        )
        return TopicStreamReader(place, plan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ScheduleWriter(*self._scheduled(schema, overwrite, "write with mode append"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ScheduleStreamWriter(*self._scheduled(schema, overwrite, "use outputMode append"))

    def _scheduled(self, schema: StructType, overwrite: bool, instead: str) -> tuple[Place, SchedulePlan]:
        """Where rows with this schema are scheduled, and how."""
        if overwrite:
            raise RequestError(f"scheduling adds messages and replaces none; {instead}")
        options = self._options(_WRITE)
        plan = _schedule_plan(options)
        check_schedule(schema, plan)
        return options.place(), plan


def _schedule_plan(options: Options) -> SchedulePlan:
    job = options.text("job")
    if job and not _JOB.fullmatch(job):
        raise RequestError(f"option job is at most 40 letters, digits, dots, - and _, not {job!r}")
    return SchedulePlan(
        options.text("topic") or None, options.is_on("once", True), job, options.span_ms("jitter")
    )


def register(spark: SparkSession) -> None:
    """Let a session read and write Tidemill. Again is no error, and takes up a changed environment."""
    for source in (TopicSource, PendingSource, HistorySource):
        try:
            spark.dataSource.register(_from_here(source))
        except AnalysisException as error:
            if error.getCondition() != _KNOWN:  # sessions of one application may share what is registered
                raise


def _from_here(source: type[_TableSource]) -> type[_TableSource]:
    """The source with the environment of this process. A class made here travels whole, not by its name."""

    class FromHere(source):  # type: ignore[valid-type, misc]
        environment = own_environment()

    return FromHere
