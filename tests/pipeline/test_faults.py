"""Processes of a served broker are killed, stopped and robbed under load. Real Spark, real processes.

After each fault Spark is the timer runner again; after all of them nothing is lost, doubled or early. One
serve and one load go through all of it, because starting Spark is what costs. How late messages were is no
matter of a test: `python -m benchmarks faults` measures it, with the same faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from acceptance.command_line import run
from benchmarks.fault_load import Load
from benchmarks.faults import FAULTS, Fault, hurt
from benchmarks.served_spark import LEAD_MS, ServedSpark, wait_until_gone
from pipeline.small_disk import filled, small_disk_at
from tidemill.cli.child_processes import wait_for
from tidemill.core.clock import machine_ms
from tidemill.core.limits import HOUR_MS
from tidemill.core.processes import command_line
from tidemill.log.disk import RealDisk
from tidemill.server.process.pipeline_command import why_not_spark
from tidemill.timer.target import read_cursor, shard_directories

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}"),
]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSpark]:
    serve = ServedSpark(tmp_path_factory.mktemp("spark-faults") / "data")
    with small_disk_at(serve.directory / "timer"):
        yield from _served(serve)


def _served(serve: ServedSpark) -> Iterator[ServedSpark]:
    try:
        serve.start()
        serve.wait_for_spark()
        yield serve
        below = serve.below()
        assert serve.stop() == 0
        wait_until_gone(below)
    finally:
        serve.kill_supervisor()
    checked = run("check", serve.directory)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="module")
def load(serve: ServedSpark) -> Iterator[Load]:
    load = Load(serve)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def _absorbed(serve: ServedSpark) -> int:
    disk = RealDisk()
    cursors = [read_cursor(disk, shard) for shard in shard_directories(disk, serve.directory / "timer")]
    return min(cursor.seq if cursor is not None else 0 for cursor in cursors)


def test_helpers_that_only_plan_are_sent_away(serve: ServedSpark) -> None:
    def planners() -> list[int]:
        return [pid for pid in serve.below() if "pyspark.sql.worker.create_data_source" in command_line(pid)]

    wait_for("the planning helpers end", lambda: not planners())


def test_a_quiet_broker_sees_no_takeover(serve: ServedSpark) -> None:
    with serve.client() as client:
        receipt = client.send("quiet", b"in an hour", delay=HOUR_MS / 1_000)
        wait_for("it is absorbed", lambda: _absorbed(serve) == 1)
        serve.wait_for_spark()
        begun_ms, before = machine_ms(), serve.pipeline()["takeovers"]
        wait_for("a lead passes", lambda: machine_ms() > begun_ms + LEAD_MS)
        assert serve.pipeline()["takeovers"] == before
        assert serve.pipeline()["runner"] == "spark"
        assert receipt.handle is not None
        client.cancel(receipt.handle)


@pytest.mark.parametrize("fault", FAULTS[1:], ids=lambda fault: fault.name)
def test_the_load_goes_on_and_spark_comes_back(serve: ServedSpark, load: Load, fault: Fault) -> None:
    before = serve.pipeline()["takeovers"]
    hurt(serve, load, fault)
    if fault.takes_over:
        assert serve.pipeline()["takeovers"] != before


def test_the_timer_has_no_room_for_a_while(serve: ServedSpark, load: Load) -> None:
    timer = serve.directory / "timer"
    if not timer.is_mount():
        pytest.skip("a small file system can be made only by root")
    serve.wait_for_step()
    with filled(timer):
        wait_for("the status says it", lambda: "no space left" in str(serve.pipeline()["problem"]))
        load.go_on()
        assert serve.pipeline()["runner"] == "embedded"
    assert not list(timer.glob("*.aside-*"))


def test_after_all_of_it_nothing_is_lost_doubled_or_early(load: Load) -> None:
    verdict = load.settle()
    print(verdict)  # shown when it is wrong
    assert verdict.sent_count > 0
    assert verdict.lost == []
    assert verdict.doubled == []
    assert verdict.early == []
    vias = sum((under.vias for under in verdict.by_fault.values()), Counter[str]())
    assert {"near", "spark"} <= set(vias)
    if any(fault.takes_over and fault.name in verdict.by_fault for fault in FAULTS):
        assert "embedded" in vias
