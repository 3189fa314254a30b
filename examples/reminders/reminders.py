"""A million reminders from a Parquet table: scheduled, forecast per minute, one segment cancelled."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

import tidemill
import tidemill.spark

TOPIC = "basket-reminders"
SEGMENTS = ("basic", "plus", "trial")
FIRST_IN_S = 3_600  # no reminder falls due while the example runs
WITHIN_S = 1_800


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("reminders")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    tidemill.spark.register(spark)
    return spark


def make_customers(spark: SparkSession, path: str, count: int, now_ms: int) -> None:
    """What a shop has anyway: customers, and when each wants to hear from us."""
    number = F.col("id")
    spark.range(count).select(
        F.concat(F.lit("customer-"), number).alias("customer"),
        F.element_at(F.array(*map(F.lit, SEGMENTS)), (number % len(SEGMENTS) + 1).cast("int")).alias(
            "segment"
        ),
        F.timestamp_millis(F.lit(now_ms) + (FIRST_IN_S + number * 7919 % WITHIN_S) * 1000).alias("remind_at"),
    ).write.parquet(path)


def reminders(customers: DataFrame) -> DataFrame:
    """A message for each customer. The key makes it the same message whenever the job is run again."""
    return customers.select(
        F.col("customer").alias("key"),
        F.concat(F.lit("your basket waits, "), "customer").alias("body"),
        F.col("remind_at").alias("deliver_at"),
        F.col("segment").alias("tag"),
    )


def schedule(messages: DataFrame, endpoint: str) -> float:
    """Schedule them all; says how many seconds that took."""
    began = time.monotonic()
    writer = messages.write.format("tidemill").option("endpoint", endpoint).option("topic", TOPIC)
    writer.mode("append").save()
    return time.monotonic() - began


def play(count: int, endpoint: str, parquet: str) -> bool:
    spark = session()
    with tidemill.Client(endpoint) as client:
        now_ms = client.status().now_ms
    make_customers(spark, parquet, count, now_ms)
    messages = reminders(spark.read.parquet(parquet))

    seconds = schedule(messages, endpoint)
    print(f"{count:,} reminders scheduled in {seconds:.1f} s, {count / seconds:,.0f} a second")
    print(f"the same job again took {schedule(messages, endpoint):.1f} s")

    def ask(text: str) -> DataFrame:
        return tidemill.spark.sql(spark, text, endpoint=endpoint)

    began = time.monotonic()
    per_minute = ask(
        f"SELECT date_trunc('minute', deliver_at) AS minute, count(*) AS messages FROM pending "
        f"WHERE topic = '{TOPIC}' GROUP BY minute ORDER BY minute"
    ).collect()
    seconds = time.monotonic() - began
    total, busiest = sum(row.messages for row in per_minute), max(row.messages for row in per_minute)
    print(f"what falls due in each minute, of {total:,} in all, counted in {seconds:.1f} s:")
    for row in per_minute[:5]:
        print(f"  {row.minute:%H:%M}  {row.messages:>9,}  {'#' * round(30 * row.messages / busiest)}")
    print(f"  … {len(per_minute) - 5} more minutes")

    began = time.monotonic()
    trial = ask(f"SELECT topic, id, seq FROM pending WHERE topic = '{TOPIC}' AND tag = 'trial'")
    answers = tidemill.spark.cancel(trial, endpoint=endpoint)
    cancelled = answers.get("cancelled", 0)
    print(f"the segment trial is cancelled in {time.monotonic() - began:.1f} s: {answers}")
    left = ask(
        f"SELECT tag, count(*) AS messages FROM pending WHERE topic = '{TOPIC}' GROUP BY tag"
    ).collect()
    print("still waiting:", ", ".join(sorted(f"{row.messages:,} {row.tag}" for row in left)))
    spark.stop()

    expected = sum(1 for number in range(count) if SEGMENTS[number % len(SEGMENTS)] == "trial")
    return (
        total == count
        and answers == {"cancelled": expected}
        and sum(row.messages for row in left) == count - cancelled
        and "trial" not in {row.tag for row in left}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="how many customers")
    count = parser.parse_args().count
    endpoint = os.environ.get("TIDEMILL_ENDPOINT", "127.0.0.1:8081")
    scratch = Path(tempfile.mkdtemp(prefix="tidemill-reminders-"))
    try:
        holds = play(count, endpoint, str(scratch / "customers"))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("everything held" if holds else "NOT everything held")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
