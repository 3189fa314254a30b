"""The broker's tables in Spark: parts, columns, conditions, SQL; cancelling what a query finds."""

from __future__ import annotations

import json

import pytest

import tidemill
from acceptance.command_line import run
from acceptance.secured import BOSS, TOKEN, Secured
from acceptance.serving import wait_until

pytest.importorskip("pyspark", reason="PySpark is not installed")

import tidemill.core.errors
import tidemill.spark
from spark.frames import HOUR_MS, error_of, reminders

# -- tables ---------------------------------------------------------------------------------------


def test_conditions_can_be_given_as_an_option(client, read) -> None:
    for number in range(4):
        client.send("chosen", "x" * number, key=f"c{number}", delay="1h")
    where = '[["topic", "=", "chosen"], ["key", ">", "c1"]]'
    frame = read("tidemill_pending", where=where, columns="key")
    assert sorted(row.key for row in frame.collect()) == ["c2", "c3"]
    assert frame.filter("key = 'c3'").count() == 1
    assert frame.count() == 2


def test_a_table_is_read_in_parts_with_the_columns_asked_for(spark, client, write, read) -> None:
    now_ms = client.status().now_ms
    write(reminders(spark, 200_000, now_ms=now_ms, partitions=4).drop("properties"), topic="parts")
    pending = read("tidemill_pending", topic="parts", columns="key,deliver_at", parts="3")
    assert pending.columns == ["key", "deliver_at"]
    assert pending.rdd.getNumPartitions() > 1
    assert pending.distinct().count() == 200_000
    chosen = spark.read.format("tidemill_pending").schema("seq bigint").option("topic", "parts").load()
    assert chosen.columns == ["seq"]
    assert chosen.distinct().count() == 200_000


def test_a_topic_is_read_between_offsets(client, read) -> None:
    client.topics.create("plain", queues=2)
    for number in range(10):
        client.send("plain", f"m{number}", key=f"k{number}", properties={"n": str(number)})
    rows = read("tidemill", topic="plain")
    assert rows.count() == 10
    bounds = {"startingOffsets": '{"0": 1, "1": 2}', "endingOffsets": '{"0": 3, "1": 4}'}
    between = read("tidemill", topic="plain", **bounds).orderBy("queue", "offset")
    assert [(row.queue, row.offset) for row in between.collect()] == [(0, 1), (0, 2), (1, 2), (1, 3)]
    assert rows.filter("deliver_at IS NULL").count() == 10


def test_history_has_lateness_and_runner(client, read) -> None:
    far = client.send("late", "far", delay="1500ms")
    client.send("late", "near", delay="10ms")
    wait_until(lambda: client.tables.history("late").num_rows == 2, "both were released")
    rows = {row.via: row for row in read("tidemill_history", topic="late").collect()}
    assert rows["near"].runner is None
    assert rows["embedded"].runner == "embedded"
    assert rows["embedded"].id == far.id
    assert all(row.lateness_ms >= 0 for row in rows.values())
    assert (
        read("tidemill_history", topic="late").filter("runner = 'embedded' AND lateness_ms >= 0").count() == 1
    )


def test_wrong_reads_are_reported_in_words(spark, read, served) -> None:
    told = {
        "unknown column 'nope'": lambda: read("tidemill_pending", columns="key,nope"),
        "topic 'missing' does not exist": lambda: read("tidemill", topic="missing").count(),
        "no broker at 127.0.0.1:9": lambda: (
            spark.read.format("tidemill").options(endpoint="127.0.0.1:9", retryFor="10ms").load()
        ),
        "not an endpoint": lambda: spark.read.format("tidemill").options(endpoint="a b").load(),
        "is timestamp, not string": lambda: (
            spark.read.format("tidemill_pending")
            .schema("deliver_at string")
            .options(endpoint=served.endpoint)
            .load()
            .count()
        ),
        "option parts": lambda: read("tidemill_pending", parts="many").count(),
        "list of conditions": lambda: read("tidemill_pending", where="{}").count(),
        "unknown column 'no' in where": lambda: read("tidemill_pending", where='[["no", "=", 1]]').count(),
        "option startingOffsets": lambda: read("tidemill", startingOffsets="now").count(),
    }
    for words, act in told.items():
        assert words in error_of(act)


# -- SQL ------------------------------------------------------------------------------------------


def test_filters_of_sql_are_the_brokers_to_apply(spark, served, client, write) -> None:
    now_ms = client.status().now_ms
    due_ms = now_ms + HOUR_MS + 100_000
    write(reminders(spark, 500, now_ms=now_ms), topic="filtered")

    def ask(condition: str):
        text = f"SELECT count(*) AS n FROM pending WHERE topic = 'filtered' AND {condition}"
        return tidemill.spark.sql(spark, text, endpoint=served.endpoint)

    for condition, count, pushed in (
        ("key = 'user-17'", 1, ["key", "=", "user-17"]),
        ("key IN ('user-1', 'user-2', 'no-key')", 2, ["key", "in", ["user-1", "user-2", "no-key"]]),
        ("key LIKE 'user-4%'", 111, ["key", "starts-with", "user-4"]),
        ("tag <> 'odd'", 250, ["tag", "!=", "odd"]),
        (f"deliver_at < timestamp_millis({due_ms})", 100, ["deliver_at", "<", due_ms]),
        (f"deliver_at <= timestamp_micros({due_ms * 1000 - 1})", 100, ["deliver_at", "<=", due_ms - 1]),
        (f"deliver_at > timestamp_micros({due_ms * 1000 + 1})", 399, ["deliver_at", ">", due_ms]),
        (f"deliver_at >= timestamp_micros({due_ms * 1000 + 1})", 399, ["deliver_at", ">=", due_ms + 1]),
        ("level IS NULL", 0, ["level", "is-null", None]),
        ("(length(key) = 6 OR key = 'user-17')", 11, None),
        ("body = CAST('remind 5' AS BINARY)", 1, None),
    ):
        frame = ask(condition)
        assert frame.collect()[0].n == count, condition
        where = _where(frame)
        assert ["topic", "=", "filtered"] in where
        assert pushed is None or where[-1] == pushed
        assert pushed is not None or len(where) <= 2
    assert frame.filter("n < 0").count() == 0
    assert frame.collect()[0].n == count  # another query over the same answer changes nothing


def test_what_is_no_query_is_refused_before_anything_is_done(spark, served) -> None:
    for text in (
        "CREATE TABLE mine AS SELECT key FROM pending",
        "CREATE OR REPLACE TEMP VIEW mine AS SELECT key FROM pending",
        "WITH p AS (SELECT key FROM pending) INSERT INTO mine SELECT * FROM p",
        "DESCRIBE pending",
        "SET spark.sql.ansi.enabled=false",
    ):
        with pytest.raises(tidemill.core.errors.RequestError, match="is not a query; use SELECT"):
            tidemill.spark.sql(spark, text, endpoint=served.endpoint)
    assert [table.name for table in spark.catalog.listTables()] == []


def test_both_sides_of_a_union_have_their_own_filters(spark, served, client) -> None:
    for number in range(6):
        client.send("sides", "x", key=f"s{number}", delay="1h")
    text = " UNION ALL ".join(
        f"SELECT key FROM pending WHERE topic = 'sides' AND key = '{key}'" for key in ("s1", "s4")
    )
    frame = tidemill.spark.sql(spark, text, endpoint=served.endpoint)
    assert sorted(row.key for row in frame.collect()) == ["s1", "s4"]
    assert _where(frame) == [["topic", "=", "sides"]]


def _where(frame) -> list[list[object]]:
    """The conditions that the broker was given for the first table of a plan."""
    leaf = frame._jdf.queryExecution().optimizedPlan().collectLeaves().apply(0)
    return json.loads(leaf.relation().options().get("where") or "[]")


def test_sql_reads_only_the_columns_it_uses(spark, served, client, write) -> None:
    write(reminders(spark, 300, now_ms=client.status().now_ms), topic="asked")
    spark.createDataFrame([(1,)], "mine int").createOrReplaceTempView("pending")

    def ask(text: str):
        return tidemill.spark.sql(spark, text, endpoint=served.endpoint)

    counted = ask("SELECT tag, count(*) AS n FROM pending WHERE topic = 'asked' GROUP BY tag ORDER BY tag")
    assert [tuple(row) for row in counted.collect()] == [("even", 150), ("odd", 150)]
    assert _scanned(counted) == {"topic", "tag"}
    everything = ask("SELECT count(*) FROM pending WHERE topic = 'asked'")
    assert everything.collect()[0][0] == 300
    assert _scanned(everything) == {"topic"}
    assert "body" not in ask("SELECT * FROM pending").columns
    text = "SELECT CAST(body AS STRING) AS b FROM pending WHERE topic = 'asked' AND key = 'user-9'"
    assert ask(text).collect()[0].b == "remind 9"
    joined = ask(
        "SELECT p.key FROM pending p JOIN (SELECT topic, max(seq) AS seq FROM pending GROUP BY topic) m "
        "ON p.topic = m.topic AND p.seq = m.seq WHERE p.topic = 'asked' "
        "UNION ALL SELECT key FROM history WHERE topic = 'no-key' "
        "UNION ALL SELECT (SELECT max(key) FROM pending WHERE topic = 'asked')"
    )
    assert len(joined.collect()) == 2
    assert spark.table("pending").columns == ["mine"]
    assert "UNRESOLVED_COLUMN" in error_of(lambda: ask("SELECT colour FROM pending"))
    spark.catalog.dropTempView("pending")


def _scanned(frame) -> set[str]:
    """The columns that the plan's scan brings."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    (leaf,) = [plan.collectLeaves().apply(i) for i in range(plan.collectLeaves().length())]
    return {leaf.output().apply(i).name() for i in range(leaf.output().length())}


def test_what_a_query_finds_is_cancelled(spark, client, write) -> None:
    write(reminders(spark, 1_000, now_ms=client.status().now_ms), topic="segment")
    odd = tidemill.spark.sql(
        spark, "SELECT topic, id, seq FROM pending WHERE topic = 'segment' AND tag = 'odd'"
    )
    odd = odd.localCheckpoint()
    assert tidemill.spark.cancel(odd) == {"cancelled": 500}
    assert tidemill.spark.cancel(odd) == {"already-cancelled": 500}
    assert set(client.tables.pending("segment", columns=["tag"])["tag"].to_pylist()) == {"even"}
    with pytest.raises(tidemill.core.errors.RequestError, match="id is missing"):
        tidemill.spark.cancel(odd.drop("id"))


# -- a broker that asks who you are ---------------------------------------------------------------


@pytest.fixture
def secured(tmp_path):
    flags = ("--pipeline", "embedded", "--flight-port", "0")
    secured = Secured(tmp_path / "data", *flags)
    secured.prepare("orders")
    yield secured.start()
    secured.stop()
    assert run("check", secured.directory).returncode == 0


def test_token_and_certificate_go_to_every_process(spark, secured, tmp_path, monkeypatch) -> None:
    endpoint = f"https://{secured.tls_endpoint}"
    place = {"endpoint": endpoint, "token": TOKEN, "ca": str(secured.ca), "retryFor": "5s"}

    def count(**options: str) -> int:
        return spark.read.format("tidemill_pending").options(topic="orders", **options).load().count()

    rows = spark.range(0, 300, 1, 2).selectExpr("concat('k', id) AS key", "'x' AS body", "'2h' AS delay")
    rows.write.format("tidemill").options(topic="orders", **place).mode("append").save()
    assert count(**place) == 300
    assert count(**{**place, "ca": "", "insecure": "true"}) == 300
    stream = spark.readStream.format("tidemill").options(topic="orders", **place).load()
    sink = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert "unknown token" in error_of(lambda: count(**{**place, "token": "wrong-token-1"}))
    assert "may not look on all topics" in error_of(
        lambda: spark.read.format("tidemill_pending").options(**place).load().count()
    )
    assert "certificate" in error_of(lambda: count(**{**place, "ca": ""}))
    # The environment as this program has it now, not as it was when Java was started.
    for name, value in (("ENDPOINT", endpoint), ("TOKEN", BOSS), ("CA", str(secured.ca))):
        monkeypatch.setenv(f"TIDEMILL_{name}", value)
    tidemill.spark.register(spark)
    assert count() == 300
    some = tidemill.spark.sql(spark, "SELECT topic, id, seq FROM pending WHERE key LIKE 'k1%'")
    assert tidemill.spark.cancel(some) == {"cancelled": 111}
    monkeypatch.undo()
    tidemill.spark.register(spark)
    assert spark.read.format("tidemill_pending").load().filter("topic = 'orders' AND key = 'k2'").count() == 0
