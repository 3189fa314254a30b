"""Tables to schedule, and how an error of Spark reads, for the tests of the data sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemill.spark.session import reason

HOUR_MS = 3_600_000


def reminders(spark: SparkSession, count: int, *, now_ms: int, partitions: int = 2) -> DataFrame:
    """Due from an hour after now on, one a second; half of them odd."""
    ids = spark.range(0, count, 1, partitions)
    return ids.select(
        F.concat(F.lit("user-"), "id").alias("key"),
        F.concat(F.lit("remind "), "id").alias("body"),
        F.timestamp_millis(F.lit(now_ms + HOUR_MS) + F.col("id") * 1000).alias("deliver_at"),
        F.create_map(F.lit("n"), F.col("id").cast("string"), F.lit('"q"'), F.lit("a\\b\n\x01")).alias(
            "properties"
        ),
        F.when(F.col("id") % 2 == 1, "odd").otherwise("even").alias("tag"),
    )


def error_of(act: Callable[[], Any]) -> str:
    """What a person reads when this fails."""
    with pytest.raises(PySparkException) as caught:
        act()
    return reason(caught.value)
