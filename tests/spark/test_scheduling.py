"""Writing a DataFrame schedules its rows: once, however often a task, a job or a stream is repeated."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import tidemill
from acceptance.serving import wait_until

pytest.importorskip("pyspark", reason="PySpark is not installed")
from pyspark.sql import functions as F

from spark.frames import HOUR_MS, error_of, reminders

_ROOT = Path(__file__).resolve().parents[2]


# -- a table --------------------------------------------------------------------------------------


def test_a_job_that_is_run_again_schedules_nothing_twice(spark, client, write, read) -> None:
    now_ms = client.status().now_ms
    frame = reminders(spark, 2_000, now_ms=now_ms)
    write(frame, topic="twice")
    write(frame.repartition(5), topic="twice")
    pending = client.tables.pending("twice", columns=["key", "deliver_at", "properties", "tag", "body"])
    assert pending.num_rows == 2_000
    first = next(row for row in pending.to_pylist() if row["key"] == "user-17")
    assert json.loads(first["properties"]) == {"n": "17", '"q"': "a\\b\n\x01"}
    assert (first["tag"], first["body"]) == ("odd", b"remind 17")
    assert round(first["deliver_at"].timestamp() * 1000) == now_ms + HOUR_MS + 17_000
    # Also when it went out, or was cancelled, in between.
    client.cancel_where("twice", key="user-3")
    write(frame, topic="twice")
    assert client.tables.pending("twice", columns=["seq"]).num_rows == 1_999
    # Another job means other messages; what waits under a key still waits alone.
    write(frame, topic="twice", job="another")
    assert client.tables.pending("twice", columns=["seq"]).num_rows == 2_000


def test_what_went_out_meanwhile_is_not_sent_again(spark, client, write) -> None:
    now_ms = client.status().now_ms
    frame = spark.createDataFrame(
        [("k1", "x", now_ms), ("k2", "y", now_ms)], "key string, body string, deliver_at long"
    )
    write(frame, topic="gone")
    wait_until(lambda: client.tables.history("gone").num_rows == 2, "both were released")
    write(frame, topic="gone")
    assert client.tables.messages("gone").num_rows == 2
    assert client.tables.pending("gone").num_rows == 0


def test_a_task_that_is_tried_again_doubles_nothing(spark, served, client, tmp_path) -> None:
    """A row that fails the first time it is computed, after a frame of its task was stored."""
    marker = str(tmp_path / "failed-once")

    def failing(batches):
        for number, batch in enumerate(batches):
            if number == 2 and not os.path.exists(marker):
                open(marker, "w").close()
                raise RuntimeError("the machine of this task is lost")
            yield batch

    count = 150_000
    rows = spark.range(0, count, 1, 1).select(
        F.concat(F.lit("k"), "id").alias("key"), F.lit("b").alias("body"), F.lit("2h").alias("delay")
    )
    frame = rows.mapInArrow(failing, rows.schema)
    write = frame.write.format("tidemill").options(endpoint=served.endpoint, topic="retried").mode("append")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "66000")
    try:
        write.save()  # Spark tries the task again by itself
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert os.path.exists(marker)
    assert client.tables.pending("retried", columns=["seq"]).num_rows == count


def test_delays_are_taken_as_texts_numbers_and_intervals(spark, client, write) -> None:
    now_ms = client.status().now_ms
    for number, delay in enumerate(("'90m'", "5400000L", "INTERVAL '01:30:00' HOUR TO SECOND")):
        frame = spark.sql(f"SELECT 'k{number}' AS key, 'x' AS body, 'delays' AS topic, {delay} AS delay")
        write(frame)
    due = [round(d.timestamp() * 1000) for d in client.tables.pending("delays")["deliver_at"].to_pylist()]
    assert len(due) == 3
    assert all(now_ms + 5_400_000 <= at < now_ms + 5_400_000 + 120_000 for at in due)


def test_wrong_writes_are_reported_in_words(spark, write, served) -> None:
    good = spark.sql("SELECT 'k' AS key, 'x' AS body, 1000L AS delay")
    told = {
        "unknown columns ['colour']": lambda: write(good.withColumn("colour", F.lit("red")), topic="t"),
        "there is no column `body`": lambda: write(good.drop("body"), topic="t"),
        "there is no column `key`": lambda: write(good.drop("key"), topic="t"),
        "column 'delay' is double": lambda: write(good.withColumn("delay", F.lit(1.5)), topic="t"),
        "name the topic either": lambda: write(good),
        "only one of the columns": lambda: write(good.withColumn("level", F.lit(1)), topic="t"),
        "neither key nor id": lambda: write(good.withColumn("key", F.lit(None).cast("string")), topic="t"),
        "not a duration: 'soon'": lambda: write(good.withColumn("delay", F.lit("soon")), topic="t"),
        "unknown options ['colour']": lambda: write(good, topic="t", colour="red"),
        "tag 'a|b'": lambda: write(good.withColumn("tag", F.lit("a|b")), topic="t"),
        "mode append": lambda: (
            good.write.format("tidemill")
            .options(endpoint=served.endpoint, topic="t")
            .mode("overwrite")
            .save()
        ),
    }
    for words, act in told.items():
        assert words in error_of(act)


# -- a stream -------------------------------------------------------------------------------------


def test_a_stream_reads_on_from_its_checkpoint_and_schedules_once(spark, served, client, tmp_path) -> None:
    client.topics.create("clicks", queues=3)

    def flow(checkpoint: str, rows_max: str = "4") -> None:
        clicks = spark.readStream.format("tidemill").options(
            endpoint=served.endpoint, topic="clicks", maxRowsPerBatch=rows_max
        )
        follow_ups = clicks.load().select(
            "key",
            F.lit("follow-ups").alias("topic"),
            F.concat(F.lit("about "), F.col("body").cast("string")).alias("body"),
            F.lit("1h").alias("delay"),
        )
        sink = follow_ups.writeStream.format("tidemill").option("endpoint", served.endpoint)
        sink = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = sink.start()
        query.awaitTermination(120)
        assert query.exception() is None

    first = str(tmp_path / "checkpoint")
    for number in range(10):
        client.send("clicks", f"c{number}", key=f"user-{number}")
    flow(first)
    assert sorted(client.tables.pending("follow-ups")["key"].to_pylist()) == [f"user-{n}" for n in range(10)]
    for number in range(10, 13):
        client.send("clicks", f"c{number}", key=f"user-{number}")
    flow(first, "100")
    assert client.tables.pending("follow-ups").num_rows == 13
    flow(str(tmp_path / "lost"))  # from the beginning, as after a lost checkpoint
    assert client.tables.pending("follow-ups").num_rows == 13
    bodies = client.tables.pending("follow-ups", columns=["body"])["body"].to_pylist()
    assert len(set(bodies)) == 13


def test_a_stream_needs_a_topic_that_is_there(spark, served, tmp_path) -> None:
    for options, words in (({}, "name it by the option"), ({"topic": "missing"}, "does not exist")):
        reader = spark.readStream.format("tidemill").options(endpoint=served.endpoint, **options)

        def start(reader=reader) -> None:
            query = reader.load().writeStream.format("noop").start()
            query.awaitTermination(60)
            query.processAllAvailable()

        assert words in error_of(start)


# -- the documents --------------------------------------------------------------------------------


def test_the_examples_of_the_documents_run(spark, client, tmp_path) -> None:
    client.topics.create("orders")
    customers = str(tmp_path / "customers")
    rows = [("c1", "hello", "2031-01-01 08:00:00"), ("c2", "hello", "2031-01-01 09:00:00")]
    frame = spark.createDataFrame(rows, "customer string, text string, at string")
    frame.withColumn("remind_at", F.to_timestamp("at")).write.parquet(customers)
    reminders = frame.select(
        F.col("customer").alias("key"), F.lit("x").alias("body"), F.lit("1h").alias("delay")
    )
    found = 0
    for name in ("README.md", "docs/spark.md"):
        for block in re.findall(r"```py\n(.*?)```", (_ROOT / name).read_text(), re.DOTALL):
            code = block.replace('"customers"', repr(customers))
            exec(compile(code, name, "exec"), {"spark": spark, "reminders": reminders, "tidemill": tidemill})
            found += 1
    assert found >= 5
    # The second of them comes with a delay, under the same keys: those still wait.
    assert sorted(client.tables.pending("reminders", columns=["key"])["key"].to_pylist()) == ["c1", "c2"]
