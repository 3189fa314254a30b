"""Processes of a served broker are killed, stopped and robbed under load. Real Spark, real processes.

After each fault: nothing lost, doubled or early, hardly anything late, and Spark turns the wheel again. One
serve goes through all of it, because starting Spark is what costs.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from acceptance.command_line import run
from acceptance.serving import is_alive
from pipeline.fault_scenario import LEAD_MS, Load, SparkServe, descendants, wait_until_gone
from pipeline.spark_broker import wait_for
from tidemill.core.limits import HOUR_MS
from tidemill.server.pipeline_command import why_not_spark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServe]:
    serve = SparkServe(tmp_path_factory.mktemp("spark-faults") / "data")
    serve.start()
    try:
        serve.wait_for_spark()
        yield serve
        below = serve.below()
        assert serve.stop() == 0
        wait_until_gone(below)
    finally:
        if serve.process is not None and serve.process.poll() is None:
            serve.kill_supervisor()
    checked = run("check", serve.directory)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def spark(served: SparkServe) -> SparkServe:
    """The serve, with Spark at the wheel."""
    served.wait_for_spark()
    return served


def test_a_quiet_broker_sees_no_takeover(spark: SparkServe) -> None:
    with spark.client() as client:
        receipt = client.send("quiet", b"in an hour", delay=HOUR_MS)
        begun_ms, before = client.status().now_ms, spark.pipeline()["takeovers"]
        wait_for("two leads pass", lambda: client.status().now_ms > begun_ms + 2 * LEAD_MS)
        assert spark.pipeline()["takeovers"] == before
        assert spark.pipeline()["runner"] == "spark"
        assert receipt.handle is not None
        client.cancel(receipt.handle)


def test_under_load_alone_everything_far_comes_through_spark(spark: SparkServe) -> None:
    with Load(spark, "undisturbed") as load:
        load.wait_for_more(600)
    assert set(load.vias) == {"near", "spark"}


def test_a_python_worker_is_killed_in_the_middle_of_a_step(spark: SparkServe) -> None:
    with Load(spark, "worker-killed") as load:
        os.kill(spark.stop_in_a_step(), signal.SIGKILL)
        load.wait_for_more(300)


def test_a_python_worker_hangs_in_the_middle_of_a_step(spark: SparkServe) -> None:
    before = spark.pipeline()["takeovers"]
    with Load(spark, "worker-hangs") as load:
        pid = spark.stop_in_a_step()
        wait_for("the broker takes the shard from it", lambda: not is_alive(pid))
        load.wait_for_more(300)
    assert spark.pipeline()["takeovers"] != before


def test_java_is_killed(spark: SparkServe) -> None:
    with Load(spark, "java-killed") as load:
        below = descendants(spark.java())
        os.kill(spark.java(), signal.SIGKILL)
        wait_until_gone(below)
        spark.wait_for_broker()
        load.wait_for_more(200)
    spark.wait_for_spark()


def test_the_driver_is_killed(spark: SparkServe) -> None:
    with Load(spark, "driver-killed") as load:
        driver = spark.driver()
        below = descendants(driver)
        os.kill(driver, signal.SIGKILL)
        wait_until_gone(below)
        spark.wait_for_spark()
        load.wait_for_more(200)
    assert spark.driver() != driver
    assert {"embedded", "spark"} <= set(load.vias)


def test_the_pipeline_is_stopped_for_longer_than_the_lead_and_goes_on(spark: SparkServe) -> None:
    with Load(spark, "stopped") as load, spark.client() as client:
        pids = [spark.driver(), *descendants(spark.driver())]
        begun_ms = client.status().now_ms
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        spark.wait_for_broker()
        wait_for("more than the lead passes", lambda: client.status().now_ms > begun_ms + LEAD_MS + 1_000)
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGCONT)
        load.wait_for_more(200)
        spark.wait_for_spark()
        load.wait_for_more(100)


def test_the_checkpoint_is_deleted(spark: SparkServe) -> None:
    with Load(spark, "checkpoint") as load:
        shutil.rmtree(spark.directory / "timer" / "spark" / "checkpoint")
        load.wait_for_more(600)
    spark.wait_for_spark()


def test_the_broker_is_killed(spark: SparkServe) -> None:
    with Load(spark, "broker-killed") as load:
        below = spark.below()
        with load.broker_is_away():
            spark.kill_broker()
            wait_until_gone(below)
        load.wait_for_more(200)


def test_the_supervisor_is_killed_and_nothing_outlives_it(spark: SparkServe) -> None:
    with Load(spark, "supervisor-killed") as load:
        below = spark.below()
        with load.broker_is_away():
            spark.kill_supervisor()
            wait_until_gone(below)
            spark.start()
        spark.wait_for_spark()
        load.wait_for_more(200)
