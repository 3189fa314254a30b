"""Opening and closing, changed settings, full disks, failed syncs, time."""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from helpers.small_broker import START_MS, SmallBroker
from tidemill.broker.broker import Broker
from tidemill.broker.embedded import open_broker
from tidemill.broker.identity import DIRECTORY_FORMAT, broker_id_of
from tidemill.core.errors import (
    BrokerClosedError,
    CorruptionError,
    DirectoryLockedError,
    DiskFullError,
    NewerFormatError,
    RequestError,
    SyncFailedError,
)
from tidemill.core.limits import DAY_MS
from tidemill.core.model import CancelAnswer, Draft, Handle, TopicType
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import RealDisk
from tidemill.store.check import check_store
from tidemill.testing import FaultPlan, FaultyDisk, ManualClock, SimulatedCrash
from tidemill.timer.settings import TimerSettings


def test_closing_says_how_many_transactions_are_open(small):
    small.broker.transactions.begin([Draft("tx", b"half", id=f"m{i}") for i in range(3)])
    small.broker.transactions.roll_back("tx", "m0")
    report = small.broker.close()
    assert (report.pending, report.open_transactions) == (0, 2)
    small.open()


def test_closing_says_what_is_waiting_and_when_the_next_is_due(small):
    small.send("a", delay_ms=90_000)
    small.send("b", delay_ms=50_000)
    report = small.broker.close()
    assert (report.pending, report.next_due_ms) == (2, START_MS + 50_000)
    assert small.broker.close().pending == 0
    for verb in (lambda: small.broker.send([Draft("a", b"")]), lambda: small.broker.receive("a", "g")):
        with pytest.raises(BrokerClosedError, match="closed"):
            verb()
    small.open()


def test_a_second_broker_on_the_directory_is_refused(small):
    with pytest.raises(DirectoryLockedError, match="in use by process"):
        Broker(small.directory, clock=ManualClock(0), has_threads=False)
    assert small.broker.send([Draft("a", b"")])


def test_a_directory_of_a_newer_format_is_refused_and_left_alone(small, tmp_path):
    small.close()
    Checkpoint(RealDisk(), small.directory, "identity", DIRECTORY_FORMAT + 1).save(b"{}", sync=True)
    files = {p: p.read_bytes() for p in small.directory.glob("identity.*")}
    checkpoint = Checkpoint(RealDisk(), small.directory, "identity", DIRECTORY_FORMAT + 1)
    checkpoint.load()
    checkpoint.save(b"{}", sync=True)
    with pytest.raises(NewerFormatError, match="newer Tidemill"):
        small.open()
    for path in small.directory.glob("identity.*"):
        path.unlink()
    for path, content in files.items():
        path.write_bytes(content)
    Checkpoint(RealDisk(), small.directory, "identity", DIRECTORY_FORMAT).save(
        b'{"broker_id":"AA"}', sync=True
    )
    small.open()


def _identity_of(directory: Path) -> dict[str, object]:
    return json.loads(Checkpoint(RealDisk(), directory, "identity", DIRECTORY_FORMAT).load())


def _as_made_by_an_earlier_version(directory: Path) -> None:
    identity = _identity_of(directory)
    for path in directory.glob("identity.*"):
        path.unlink()
    content = json.dumps({"broker_id": identity["broker_id"]}).encode()
    Checkpoint(RealDisk(), directory, "identity", DIRECTORY_FORMAT).save(content, sync=True)


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_directory_that_lost_its_consumers_is_refused_and_left_alone(small, is_killed, is_damaged):
    small.send("t")
    small.broker.ack([delivery.ack_token for delivery in small.broker.receive("t", "g")])
    if is_killed:
        small.kill()
    else:
        small.close()
    kept = {path: path.read_bytes() for path in (small.directory / "consumers").iterdir()}
    for path in kept:
        if is_damaged:
            path.write_bytes(b"no checkpoint")
    if not is_damaged:
        small.delete("consumers")
    found = sorted(small.directory.rglob("*"))
    with pytest.raises(CorruptionError, match=r"not known what was acknowledged.*--new-consumers"):
        small.open()
    assert sorted(small.directory.rglob("*")) == found
    (small.directory / "consumers").mkdir(exist_ok=True)
    for path, content in kept.items():
        path.write_bytes(content)
    small.disk = FaultyDisk(1)
    small.open()
    assert small.broker.receive("t", "g") == []


def test_a_directory_is_not_made_without_its_consumers(tmp_path):
    for crash_at in count(1):
        directory = tmp_path / str(crash_at)
        with FaultyDisk(crash_at, plan=FaultPlan(crash_at=crash_at, count_writes=True)) as disk:
            directory.mkdir()
            try:
                broker_id_of(disk, directory)
                break
            except SimulatedCrash:
                pass
            left = disk.crash(power_cut=True)
            broker_id_of(left, directory)  # whatever the crash left can be opened
            left.close()
    assert crash_at > 5
    assert _identity_of(directory)["has_consumers"]


def test_a_directory_of_an_earlier_version_opens_without_consumers_until_it_is_seen_with_them(small):
    small.send("t", delay_ms=5)
    small.close()
    _as_made_by_an_earlier_version(small.directory)
    small.delete("consumers")
    small.open()  # no check can see that it was changed
    assert "has_consumers" not in _identity_of(small.directory)
    broker_id = small.broker.id
    small.reopen()
    assert _identity_of(small.directory) == {"broker_id": broker_id, "has_consumers": True}


@pytest.mark.parametrize(
    "change",
    [
        {"tick_ms": 100},
        {"shards": 5},
        {"shards": 1},
        {"tick_ms": 500, "shards": 3},
        {"lead_ms": 5_000},
        {"roll_window_ms": 60_000},
        {"wheel_slots": 103, "roll_window_ms": 100_000},
        {"wheel_slots": 2_000, "roll_window_ms": 100_000, "tick_ms": 100},
    ],
)
def test_another_shape_of_the_timer_keeps_every_message(small, change):
    dues = [500 + 7_700 * i for i in range(60)]
    for due in dues:
        small.send("t", b"%d" % due, delay_ms=due)
    small.advance(100_000)
    small.reopen(**change)
    small.advance(400_000)
    small.reopen(tick_ms=1000, shards=2, lead_ms=30_000)
    assert {int(m.body): m.released_at_ms - START_MS for m in small.in_topic("t")} == {
        due: due for due in dues
    }


@pytest.mark.parametrize("is_kill", [True, False])
def test_the_timer_directory_can_be_deleted_at_any_time(small, is_kill):
    dues = [500 + 7_700 * i for i in range(60)]
    for due in dues:
        small.send("t", b"%d" % due, delay_ms=due)
    for _ in range(4):
        small.advance(120_000)
        small.kill() if is_kill else small.close()
        small.delete("timer")
        small.open()
    small.advance(1)
    assert {int(m.body): m.released_at_ms - START_MS for m in small.in_topic("t")} == {
        due: due for due in dues
    }


def test_forty_simulated_days_pass_in_seconds(make_small):
    small = make_small(retention_ms=90 * DAY_MS, lead_ms=60_000, timer=TimerSettings())
    dues = {b"%d" % i: 1_000 + i * 40 * DAY_MS // 100 for i in range(100)}
    small.broker.send([Draft("t", body, delay_ms=due) for body, due in dues.items()])
    small.advance(40 * DAY_MS)
    assert {m.body: m.released_at_ms - START_MS for m in small.in_topic("t")} == dues


def test_only_a_simulated_clock_can_be_moved(tmp_path):
    with (
        open_broker(tmp_path / "d", retention="1d") as broker,
        pytest.raises(RequestError, match="simulated"),
    ):
        broker.advance_to(0)


# -- the disk -------------------------------------------------------------------------------------


def _fill_up(small: SmallBroker) -> None:
    """Send until the disk is full."""
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) + 40_000
    for size in (1_000, 0):
        with pytest.raises(DiskFullError):
            _send_many(small, size)


def _send_many(small: SmallBroker, size: int) -> None:
    for _ in range(400):
        small.send("filler", bytes(size))


def test_on_a_full_disk_sends_are_refused_and_everything_else_goes_on(small):
    receipts = [small.send("t", b"%d" % i, delay_ms=1_000 + i, keys=(f"k{i}",)) for i in range(50)]
    small.send("work", b"job")
    _fill_up(small)
    end, before = small.log_end, small.broker.status().sent
    for drafts in ([Draft("t", b"")], [Draft("t", b"", delay_ms=5)], [Draft("brand-new", b"")]):
        with pytest.raises(DiskFullError):
            small.broker.send(drafts)
    assert (small.log_end, small.broker.status().sent) == (end, before)
    assert small.broker.cancel([receipts[0].handle]) == [CancelAnswer.CANCELLED]
    (delivery,) = small.broker.receive("work", "g")
    assert small.broker.ack([delivery.ack_token]) == [True]
    small.advance(5_000)
    assert len(small.bodies("t")) == 49
    small.disk.capacity_bytes = None
    small.send("t", b"room again")
    assert b"room again" in small.bodies("t")


def test_a_disk_that_is_full_for_long_loses_nothing_and_recovers(small):
    for i in range(300):
        small.send("t", b"%d" % i, delay_ms=1_000 + 10 * i)
    _fill_up(small)
    small.advance(5_000)
    assert small.broker.status().released == 300
    small.kill_and_open()
    assert sorted(map(int, small.bodies("t"))) == list(range(300))
    with pytest.raises(DiskFullError):
        _send_many(small, 1_000)
    small.disk.capacity_bytes = None
    small.broker.run_due()
    small.send("t", b"300")


def test_a_failed_sync_stops_the_broker_and_what_was_acknowledged_is_there_after(small):
    small.send("t", b"safe", delay_ms=60_000)
    small.disk.arm(FaultPlan(fail_sync_at=1))
    with pytest.raises(SyncFailedError):
        small.send("t", b"unknown", delay_ms=60_000)
    small.disk.arm(FaultPlan())
    with pytest.raises(BrokerClosedError, match="sync failed"):
        small.send("t", b"refused", delay_ms=60_000)
    small.kill_and_open(power_cut=True)
    bodies = {
        small.broker.store.message(int(small.broker.store.entry(p.seq)["place"])).body
        for p in small.broker.views.pending()
    }
    assert b"safe" in bodies


def test_async_durability_answers_before_the_sync_and_is_safe_after_the_next(make_small):
    small = make_small(durability="async")
    small.disk.arm(FaultPlan())
    small.send("t", b"now")
    assert small.disk.sync_count == 0
    assert small.bodies("t") == [b"now"]
    small.broker.run_due()
    assert small.broker.store.log.synced_end == small.log_end
    small.kill_and_open(power_cut=True)
    assert small.bodies("t") == [b"now"]


# -- threads --------------------------------------------------------------------------------------


def test_a_waiting_consumer_gets_a_message_the_moment_it_is_released(tmp_path):
    with open_broker(tmp_path / "d", queues_per_topic=1) as broker:
        broker.topics.create("t", TopicType.MIXED, 1)
        started, got = threading.Event(), []

        def consume() -> None:
            started.set()
            got.extend(broker.receive("t", "g", wait_ms=20_000))

        consumer = threading.Thread(target=consume)
        consumer.start()
        started.wait()
        broker.send([Draft("t", b"hello", delay_ms=30)])
        consumer.join(20)
        assert [d.message.body for d in got] == [b"hello"]
        assert got[0].released_at_ms >= got[0].message.deliver_at_ms
        assert broker.ack([got[0].ack_token]) == [True]
        findings = check_store(broker.store, RealDisk(), tmp_path / "scratch")
        assert not findings


def test_a_waiting_consumer_is_let_go_when_the_broker_closes(tmp_path):
    broker = open_broker(tmp_path / "d")
    broker.topics.create("t")
    failures: list[Exception] = []
    started = threading.Event()

    def consume() -> None:
        started.set()
        try:
            broker.receive("t", "g", wait_ms=60_000)
        except BrokerClosedError as error:
            failures.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    started.wait()
    broker.close()
    consumer.join(20)
    assert not consumer.is_alive()
    assert failures


def test_many_senders_and_cancellers_at_once_agree_with_the_log(tmp_path):
    with open_broker(tmp_path / "d", queues_per_topic=2) as broker:
        barrier = threading.Barrier(6)
        cancelled: list[int] = []
        stored: list[str] = []  # the ids of sends that were answered as no repeat
        handles: set[Handle] = set()

        def work(number: int) -> None:
            barrier.wait()
            for i in range(40):
                results = broker.send(
                    [Draft("t", b"", delay_ms=20 + i % 7, id=f"{number % 3}-{i}-{k}") for k in range(5)]
                )
                stored.extend(result.id for result in results if not result.is_repeat)
                handles.update(result.handle for result in results)
                answers = broker.cancel([result.handle for result in results[::2]])
                cancelled.append(answers.count(CancelAnswer.CANCELLED))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
        assert not [(name, times) for name, times in Counter(stored).items() if times > 1]
        assert (len(stored), len(handles)) == (3 * 40 * 5, 3 * 40 * 5)
        notifier, seen = broker.store.notifier, -1
        while broker.status().pending and notifier.count != seen:
            seen = notifier.count
            notifier.wait(seen, 5_000)
        status = broker.status()
        assert (status.sent, status.pending) == (3 * 40 * 5, 0)
        assert (status.cancelled, status.released) == (sum(cancelled), 600 - sum(cancelled))
        assert not broker.check(tmp_path / "scratch")


def test_a_log_without_any_file_is_not_taken_for_a_new_directory(tmp_path):
    with open_broker(tmp_path / "data") as broker:
        broker.send([Draft("orders", b"x", delay_ms=DAY_MS)])
    for segment in (tmp_path / "data" / "log").glob("*.log"):
        segment.unlink()
    with pytest.raises(CorruptionError, match="no file left"):
        open_broker(tmp_path / "data")
