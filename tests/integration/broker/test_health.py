"""Faults and failures of a broker: what counts, since when, what cures it, and who hears of it."""

from __future__ import annotations

import threading

import pytest

from tidemill.broker.embedded import open_broker
from tidemill.broker.health import FAILING_MS, Health, HealthState, Remedy
from tidemill.core.errors import (
    BrokerClosedError,
    CorruptionError,
    DiskFullError,
    StorageError,
    SyncFailedError,
)
from tidemill.core.model import Draft
from tidemill.store.indexes import Indexes
from tidemill.store.topic_queues import TopicQueues
from tidemill.testing import FaultPlan, FaultyDisk


class _Time:
    ms = 5_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def time():
    return _Time()


@pytest.fixture
def health(time):
    return Health(now_ms=time)


def test_a_service_that_keeps_failing_shows_after_a_while_and_no_longer_after_a_success(time, health):
    health.failed("releaser", ValueError("odd"))
    time.ms += FAILING_MS - 1
    health.failed("releaser", StorageError("/data/x: no such device"))
    assert health.view().is_ok
    time.ms += 1
    view = health.view()
    assert (view.state, view.reason) == (
        HealthState.FAILING,
        "releaser has failed for 10 s: /data/x: no such device",
    )
    health.require_open()  # all the rest goes on
    health.recovered("timer")
    assert not health.view().is_ok
    health.recovered("releaser")
    assert (health.view().state, health.view().reason) == (HealthState.OK, "")
    health.failed("releaser", ValueError("odd"))
    assert health.view().is_ok, "it begins anew"
    assert health.view().failures == {"releaser": 3}


def test_a_full_disk_is_counted_and_no_failure(time, health):
    health.failed("releaser", DiskFullError("full"))
    time.ms += 10 * FAILING_MS
    assert health.view().is_ok and health.view().failures == {"releaser": 1}


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (SyncFailedError("sync"), Remedy.OPERATOR),
        (CorruptionError("damaged"), Remedy.OPERATOR),
        (StorageError("no such device"), Remedy.REOPEN),
        (AssertionError("contradiction"), Remedy.REOPEN),
    ],
)
def test_the_first_fault_stays_and_is_heard_of_once(health, error, remedy):
    heard: list[str] = []
    health.when_stopped(lambda: heard.append("before"))
    health.stop("commit log", error)
    health.stop("releaser", BrokerClosedError("the store stopped after a fault; open it again"))
    health.when_stopped(lambda: heard.append("after"))
    assert heard == ["before", "after"]
    assert health.fault is not None and health.fault.error is error and health.fault.remedy is remedy
    assert health.view().state is HealthState.FAILED and health.view().reason.startswith("commit log: ")
    with pytest.raises(BrokerClosedError, match="the broker stopped: commit log: "):
        health.require_open()


# -- what a broker reports ------------------------------------------------------------------------


def _refuse(*_: object) -> None:
    raise AssertionError("the frame contradicts the index")


def test_a_frame_that_cannot_be_applied_stops_the_broker_and_opening_again_takes_it(small, monkeypatch):
    small.send("t", b"safe", delay_ms=60_000)
    with monkeypatch.context() as patch:
        patch.setattr(Indexes, "apply", _refuse)
        patch.setattr(Indexes, "apply_written", _refuse)
        with pytest.raises(AssertionError):
            small.send("t", b"appended", delay_ms=60_000)
    view = small.broker.status().health
    assert view.state is HealthState.FAILED
    assert view.reason == "commit log: unexpected AssertionError: the frame contradicts the index"
    assert small.broker.health.fault.remedy is Remedy.REOPEN
    for verb in (
        lambda: small.send("t", b"refused"),
        lambda: small.broker.receive("t", "g"),
        lambda: small.broker.cancel([]),
    ):
        with pytest.raises(BrokerClosedError, match="commit log: unexpected AssertionError"):
            verb()
    small.broker.close()  # nothing of what is in memory is written
    small.disk = FaultyDisk(1)
    small.open()
    assert small.broker.status().health.state is HealthState.OK
    assert small.broker.status().pending == 2, "what was appended is in the log"


def test_queue_rows_that_cannot_be_written_stop_the_broker_and_opening_again_writes_them(small, monkeypatch):
    small.send("t", b"first")

    def refuse(*_: object) -> None:
        raise StorageError("/data/index/queues: Operation not permitted; check the disk and its permissions")

    with monkeypatch.context() as patch:
        patch.setattr(TopicQueues, "publish", refuse)
        with pytest.raises(StorageError):
            small.send("t", b"stored")
    fault = small.broker.health.fault
    assert fault is not None and fault.remedy is Remedy.REOPEN
    assert "Operation not permitted" in fault.reason
    with pytest.raises(BrokerClosedError):
        small.send("t", b"refused")
    small.kill_and_open()
    assert {row.body for row in small.in_topic("t")} == {b"first", b"stored"}


def test_a_failed_sync_is_for_a_person(small):
    small.disk.arm(FaultPlan(fail_sync_at=1))
    with pytest.raises(SyncFailedError):
        small.send("t", b"unknown", delay_ms=60_000)
    small.disk.arm(FaultPlan())
    fault = small.broker.health.fault
    assert fault is not None and fault.remedy is Remedy.OPERATOR and "sync" in fault.reason
    small.kill_and_open(power_cut=True)


@pytest.mark.parametrize("part", ["commit log", "consumer log"])
def test_an_append_that_fails_half_way_stops_the_broker(small, monkeypatch, part):
    small.send("t")
    (delivery,) = small.broker.receive("t", "g")
    store = small.broker.store
    log = store.log if part == "commit log" else store.consumers._log

    def fail(*_: object, **__: object) -> None:
        raise StorageError("/data/log: Input/output error; check the disk and its permissions")

    monkeypatch.setattr(log, "append", fail)
    with pytest.raises(StorageError):
        small.send("t") if part == "commit log" else small.broker.ack([delivery.ack_token])
    fault = small.broker.health.fault
    assert fault is not None and fault.remedy is Remedy.REOPEN
    assert fault.reason.startswith(f"{part}: /data/log: Input/output error")
    small.kill_and_open()


def test_a_waiting_consumer_is_let_go_when_the_broker_stops(tmp_path):
    with open_broker(tmp_path / "d") as broker:
        broker.topics.create("t")
        refused: list[Exception] = []
        started = threading.Event()

        def consume() -> None:
            started.set()
            try:
                broker.receive("t", "g", wait_ms=60_000)
            except BrokerClosedError as error:
                refused.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        started.wait()
        broker.health.stop("timer", AssertionError("odd"))
        consumer.join(20)
        assert not consumer.is_alive() and refused
        with pytest.raises(BrokerClosedError):
            broker.send([Draft("t", b"")])
    with open_broker(tmp_path / "d") as broker:
        broker.send([Draft("t", b"")])
