"""A small Spark session for one command: local, silent, with times in UTC; and one query in it.

Owns the session's settings, the redirection of Spark's own output (into a file, so that a terminal shows
answers and errors alone), and the conversion of Spark's errors to one line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemill.core.errors import RequestError, StorageError
from tidemill.spark.query import sql

_MEMORY = "1g"
_NO_JAVA = "JAVA_GATEWAY_EXITED"
_OWN = re.compile(r"tidemill\.[\w.]+: (.+)")  # as a traceback ends with one of our errors
_PYTHON = re.compile(r"\w+(?:Error|Exception): (.+)")


def ask(query: str, options: dict[str, str], rows_max: int | None, log: Path) -> pa.Table:
    """The answer to one query, in a session of its own. What is wrong is raised as one line."""
    try:
        with quiet_session(log) as spark:
            frame = sql(spark, query, **options)
            return (frame if rows_max is None else frame.limit(rows_max)).toArrow()
    except PySparkException as error:
        if error.getCondition() == _NO_JAVA:
            raise StorageError(f"Spark's Java process did not start; {_what_java_said(log)}") from None
        raise RequestError(reason(error)) from None
    except Py4JError as error:
        raise StorageError(f"Spark failed: {reason(error)}") from None


@contextmanager
def quiet_session(log: Path, master: str = "local[*]") -> Iterator[SparkSession]:
    """A session while the block runs. Whatever is written to standard error meanwhile goes to `log`.

    Beside it, in a folder that is the caller's to remove, is what Java and Spark put down meanwhile.
    """
    # Workers must run the same Python as the driver, whatever is on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    scratch = log.parent.resolve()
    with _standard_error_in(log):
        spark = (
            SparkSession.builder.master(master)
            .appName("tidemill-sql")
            .config("spark.driver.memory", _MEMORY)
            .config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={scratch}"')
            .config("spark.local.dir", str(scratch))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 16))
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Point standard error at a file, for this process and those it starts."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _what_java_said(log: Path) -> str:
    """The last line of it, and what to do."""
    *_, said = ["it printed nothing", *log.read_text(errors="replace").strip().splitlines()]
    return f"set JAVA_HOME to a Java 17 or newer ({said.strip()})"


def reason(error: Exception) -> str:
    """Why something failed, in one line: Tidemill's own error in a worker, else Spark's first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    for pattern in (_OWN, _PYTHON):
        said = [found[1] for line in lines if (found := pattern.match(line))]
        if said:
            return said[-1]
    return next((line for line in lines if line), type(error).__name__)
