"""The data sources on a real Spark, against a real `tidemill serve`: one session, one broker for all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.command_line import run
from acceptance.secured import BOSS, TOKEN, Secured
from acceptance.serving import Served, wait_until
from tidemill.server.pipeline_command import why_not_spark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}"),
    # PySpark leaves sockets of its workers to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

import tidemill  # noqa: E402
import tidemill.core.errors  # noqa: E402
import tidemill.spark  # noqa: E402
from tidemill.spark.session import quiet_session, reason  # noqa: E402

_HOUR_MS = 3_600_000
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(
        tmp_path_factory.mktemp("tables") / "data",
        *("--pipeline", "embedded", "--flight-port", "0", "--lead", "1s", "--tick", "100ms"),
    )
    yield served.start()
    served.stop()
    assert run("check", served.directory).returncode == 0


@pytest.fixture(scope="module")
def spark(tmp_path_factory, served):
    # Where the examples of the documents find the broker.
    with pytest.MonkeyPatch.context() as patch, _session(tmp_path_factory, served, patch) as spark:
        yield spark


@contextmanager
def _session(tmp_path_factory, served, patch):
    patch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    with quiet_session(tmp_path_factory.mktemp("spark") / "log", "local[2,3]") as spark:
        tidemill.spark.register(spark)
        tidemill.spark.register(spark)  # again is no error
        yield spark


@pytest.fixture(scope="module")
def client(served):
    with tidemill.Client(served.endpoint) as client:
        yield client


@pytest.fixture
def read(spark, served):
    def load(name: str, **options: str):
        return spark.read.format(name).options(endpoint=served.endpoint, **options).load()

    return load


@pytest.fixture
def write(served):
    def save(frame, **options: str) -> None:
        frame.write.format("tidemill").options(endpoint=served.endpoint, **options).mode("append").save()

    return save


def _reminders(spark, count: int, *, now_ms: int, partitions: int = 2):
    ids = spark.range(0, count, 1, partitions)
    return ids.select(
        F.concat(F.lit("user-"), "id").alias("key"),
        F.concat(F.lit("remind "), "id").alias("body"),
        F.timestamp_millis(F.lit(now_ms + _HOUR_MS) + F.col("id") * 1000).alias("deliver_at"),
        F.create_map(F.lit("n"), F.col("id").cast("string"), F.lit('"q"'), F.lit("a\\b\n\x01")).alias(
            "properties"
        ),
        F.when(F.col("id") % 2 == 1, "odd").otherwise("even").alias("tag"),
    )


def _error(act) -> str:
    with pytest.raises(PySparkException) as caught:
        act()
    return reason(caught.value)


# -- writing --------------------------------------------------------------------------------------


def test_a_job_that_is_run_again_schedules_nothing_twice(spark, client, write, read) -> None:
    now_ms = client.status().now_ms
    frame = _reminders(spark, 2_000, now_ms=now_ms)
    write(frame, topic="twice")
    write(frame.repartition(5), topic="twice")
    pending = client.pending_table("twice", columns=["key", "deliver_at", "properties", "tag", "body"])
    assert pending.num_rows == 2_000
    first = next(row for row in pending.to_pylist() if row["key"] == "user-17")
    assert json.loads(first["properties"]) == {"n": "17", '"q"': "a\\b\n\x01"}
    assert (first["tag"], first["body"]) == ("odd", b"remind 17")
    assert round(first["deliver_at"].timestamp() * 1000) == now_ms + _HOUR_MS + 17_000
    # Also when it went out, or was cancelled, in between.
    client.cancel_where("twice", key="user-3")
    write(frame, topic="twice")
    assert client.pending_table("twice", columns=["seq"]).num_rows == 1_999
    # Another job means other messages; what waits under a key still waits alone.
    write(frame, topic="twice", job="another")
    assert client.pending_table("twice", columns=["seq"]).num_rows == 2_000


def test_what_went_out_meanwhile_is_not_sent_again(spark, client, write) -> None:
    now_ms = client.status().now_ms
    frame = spark.createDataFrame(
        [("k1", "x", now_ms), ("k2", "y", now_ms)], "key string, body string, deliver_at long"
    )
    write(frame, topic="gone")
    wait_until(lambda: client.history_table("gone").num_rows == 2, "both were released")
    write(frame, topic="gone")
    assert client.messages_table("gone").num_rows == 2
    assert client.pending_table("gone").num_rows == 0


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
    assert client.pending_table("retried", columns=["seq"]).num_rows == count


def test_delays_are_taken_as_texts_numbers_and_intervals(spark, client, write) -> None:
    now_ms = client.status().now_ms
    for number, delay in enumerate(("'90m'", "5400000L", "INTERVAL '01:30:00' HOUR TO SECOND")):
        frame = spark.sql(f"SELECT 'k{number}' AS key, 'x' AS body, 'delays' AS topic, {delay} AS delay")
        write(frame)
    due = [round(d.timestamp() * 1000) for d in client.pending_table("delays")["deliver_at"].to_pylist()]
    assert len(due) == 3
    assert all(now_ms + 5_400_000 <= at < now_ms + 5_400_000 + 120_000 for at in due)


def test_wrong_writes_are_told_in_words(spark, write, served) -> None:
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
        assert words in _error(act)


# -- reading --------------------------------------------------------------------------------------


def test_filters_of_sql_are_the_brokers_to_apply(spark, served, client, write) -> None:
    now_ms = client.status().now_ms
    due_ms = now_ms + _HOUR_MS + 100_000
    write(_reminders(spark, 500, now_ms=now_ms), topic="filtered")

    def ask(condition: str):
        text = f"SELECT count(*) AS n FROM pending WHERE topic = 'filtered' AND {condition}"
        return tidemill.spark.sql(spark, text, endpoint=served.endpoint)

    for condition, count, pushed in (
        ("key = 'user-17'", 1, ["key", "=", "user-17"]),
        ("key IN ('user-1', 'user-2', 'nobody')", 2, ["key", "in", ["user-1", "user-2", "nobody"]]),
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
    write(_reminders(spark, 200_000, now_ms=now_ms, partitions=4).drop("properties"), topic="parts")
    pending = read("tidemill_pending", topic="parts", columns="key,deliver_at", parts="3")
    assert pending.columns == ["key", "deliver_at"]
    assert pending.rdd.getNumPartitions() > 1
    assert pending.distinct().count() == 200_000
    chosen = spark.read.format("tidemill_pending").schema("seq bigint").option("topic", "parts").load()
    assert chosen.columns == ["seq"]
    assert chosen.distinct().count() == 200_000


def test_a_topic_is_read_between_offsets(client, read) -> None:
    client.create_topic("plain", queues=2)
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
    wait_until(lambda: client.history_table("late").num_rows == 2, "both were released")
    rows = {row.via: row for row in read("tidemill_history", topic="late").collect()}
    assert rows["near"].runner is None
    assert rows["embedded"].runner == "embedded"
    assert rows["embedded"].id == far.id
    assert all(row.lateness_ms >= 0 for row in rows.values())
    assert (
        read("tidemill_history", topic="late").filter("runner = 'embedded' AND lateness_ms >= 0").count() == 1
    )


def test_wrong_reads_are_told_in_words(spark, read, served) -> None:
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
        assert words in _error(act)


# -- streams --------------------------------------------------------------------------------------


def test_a_stream_reads_on_from_its_checkpoint_and_schedules_once(spark, served, client, tmp_path) -> None:
    client.create_topic("clicks", queues=3)

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
    assert sorted(client.pending_table("follow-ups")["key"].to_pylist()) == [f"user-{n}" for n in range(10)]
    for number in range(10, 13):
        client.send("clicks", f"c{number}", key=f"user-{number}")
    flow(first, "100")
    assert client.pending_table("follow-ups").num_rows == 13
    flow(str(tmp_path / "lost"))  # from the beginning, as after a lost checkpoint
    assert client.pending_table("follow-ups").num_rows == 13
    bodies = client.pending_table("follow-ups", columns=["body"])["body"].to_pylist()
    assert len(set(bodies)) == 13


def test_a_stream_needs_a_topic_that_is_there(spark, served, tmp_path) -> None:
    for options, words in (({}, "name it by the option"), ({"topic": "missing"}, "does not exist")):
        reader = spark.readStream.format("tidemill").options(endpoint=served.endpoint, **options)

        def start(reader=reader) -> None:
            query = reader.load().writeStream.format("noop").start()
            query.awaitTermination(60)
            query.processAllAvailable()

        assert words in _error(start)


# -- a broker that asks who you are ----------------------------------------------------------------


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
    assert "not known" in _error(lambda: count(**{**place, "token": "wrong-token-1"}))
    assert "may not look on all topics" in _error(
        lambda: spark.read.format("tidemill_pending").options(**place).load().count()
    )
    assert "certificate" in _error(lambda: count(**{**place, "ca": ""}))
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


# -- the documents, and cancelling -----------------------------------------------------------------


def test_the_examples_of_the_documents_run(spark, client, tmp_path) -> None:
    client.create_topic("orders")
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
    assert sorted(client.pending_table("reminders", columns=["key"])["key"].to_pylist()) == ["c1", "c2"]


def test_what_a_query_finds_is_cancelled(spark, client, write) -> None:
    write(_reminders(spark, 1_000, now_ms=client.status().now_ms), topic="segment")
    odd = tidemill.spark.sql(
        spark, "SELECT topic, id, seq FROM pending WHERE topic = 'segment' AND tag = 'odd'"
    )
    odd = odd.localCheckpoint()
    assert tidemill.spark.cancel(odd) == {"cancelled": 500}
    assert tidemill.spark.cancel(odd) == {"already-cancelled": 500}
    assert set(client.pending_table("segment", columns=["tag"])["tag"].to_pylist()) == {"even"}
    with pytest.raises(tidemill.core.errors.RequestError, match="id is missing"):
        tidemill.spark.cancel(odd.drop("id"))


def test_the_million_reminders_in_small(served) -> None:
    result = subprocess.run(
        [sys.executable, _ROOT / "examples" / "reminders" / "reminders.py", "--count", "20000"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "TIDEMILL_ENDPOINT": served.endpoint},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "everything held" in result.stdout


# -- SQL ------------------------------------------------------------------------------------------


def test_sql_reads_only_the_columns_it_uses(spark, served, client, write) -> None:
    write(_reminders(spark, 300, now_ms=client.status().now_ms), topic="asked")
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
        "UNION ALL SELECT key FROM history WHERE topic = 'nobody' "
        "UNION ALL SELECT (SELECT max(key) FROM pending WHERE topic = 'asked')"
    )
    assert len(joined.collect()) == 2
    assert spark.table("pending").columns == ["mine"]
    assert "UNRESOLVED_COLUMN" in _error(lambda: ask("SELECT colour FROM pending"))
    spark.catalog.dropTempView("pending")


def _scanned(frame) -> set[str]:
    """The columns that the plan's scan brings."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    (leaf,) = [plan.collectLeaves().apply(i) for i in range(plan.collectLeaves().length())]
    return {leaf.output().apply(i).name() for i in range(leaf.output().length())}


def test_the_command_answers_a_query(served, client) -> None:
    client.send("told", "a,b", key="k1", delay="3h")
    text = "SELECT key, CAST(body AS STRING) AS body, deliver_at FROM pending WHERE topic = 'told'"
    found = run("sql", text, "--json", "--endpoint", served.endpoint)
    assert found.returncode == 0, found.stderr
    (row,) = [json.loads(line) for line in found.stdout.splitlines()]
    assert (row["key"], row["body"]) == ("k1", "a,b")
    assert row["deliver_at"].endswith("Z")
    assert found.stderr == ""


def test_the_command_tells_what_is_wrong_in_one_line(served, monkeypatch) -> None:
    away = run("sql", "SELECT 1 FROM pending", "--endpoint", "127.0.0.1:9")
    assert away.returncode == 1
    assert "no broker at 127.0.0.1:9" in away.stderr
    both = run("sql", "SELECT 1", "--json", "--csv", "--endpoint", served.endpoint)
    assert both.returncode == 2
    wrong = run("sql", "SELECT nope FROM pending", "--endpoint", served.endpoint)
    assert wrong.returncode == 2
    assert "`nope` cannot be resolved" in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("JAVA_HOME", "")
    bare = run("sql", "SELECT 1", "--endpoint", served.endpoint)
    assert bare.returncode == 1
    assert "there is no Java" in bare.stderr
