"""Messages that the timer or the releaser has forgotten: found after their minute, released once, counted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from helpers.small_broker import START_MS, SmallBroker
from tidemill.core.limits import MINUTE_MS
from tidemill.log.arrays import Rows
from tidemill.release import sweeper
from tidemill.release.due_rows import NO_ROWS
from tidemill.store.damage import Derived
from tidemill.store.formats.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR
from tidemill.testing import ManualClock
from tidemill.timer.ready_files import parse_ready_name
from tidemill.timer.wheel.timer_log_format import UNIT, UNIT_BYTES
from tidemill.timer.wheel.wheel_format import SLOT_BYTES

STORES = ("wheel", "rocksdb")
_DELAY_MS = 600_000
_FLAGS = ENTRY.fields["flags"][1]
_FIELDS = [(name, UNIT.fields[name][1], UNIT[name].itemsize) for name in UNIT.names]


@pytest.fixture
def damaged(make_small):
    """A broker whose timer the test damages, with eight messages in its wheel."""

    def make(**settings) -> SmallBroker:
        small = make_small(queues_per_topic=1, **settings)
        small.is_timer_damaged = True
        for number in range(8):
            small.send("t", b"%d" % number, deliver_at_ms=small.clock.now_ms() + _DELAY_MS + number * 1_500)
        small.advance(30_000)  # absorbed, and nowhere but in the timer
        return small

    return make


def _put(path: Path, at: int, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, content, at)
    finally:
        os.close(fd)


def _timer_files(small: SmallBroker, pattern: str) -> list[Path]:
    return sorted(path for path in (small.directory / "timer").glob(pattern) if path.is_file())


def _expect_all(small: SmallBroker, *, once: int = 8) -> None:
    assert sorted(small.bodies("t")) == [b"%d" % number for number in range(once)]
    rows = small.in_topic("t")
    assert all(row.released_at_ms >= row.deliver_at_ms for row in rows)
    small.check()


def _shards_built_again(small: SmallBroker) -> int:
    return small.broker.store.repairs.counts()[Derived.TIMER]


def test_nothing_is_swept_while_all_is_well(make_small):
    small = make_small(queues_per_topic=1)
    for delay_ms in (1_000, 59_000, 61_000, 200_000, 900_000):
        small.send("t", b"x", deliver_at_ms=small.clock.now_ms() + delay_ms)
        small.send("level", b"x", level=3)
    for _ in range(20):
        small.advance(60_000)
    assert len(small.in_topic("t")) == 5
    assert small.broker.status().swept == 0


def test_zeroed_wheel_slots_cost_a_minute_and_never_a_message(damaged, caplog):
    small = damaged()
    for path in _timer_files(small, "*/wheel"):
        _put(path, 0, bytes(path.stat().st_size))
    small.advance(_DELAY_MS)
    assert small.bodies("t") == []
    small.advance(75_000)
    _expect_all(small)
    assert small.broker.status().swept == 8
    assert _shards_built_again(small) == 2
    assert "8 messages due from" in caplog.text


def test_one_zeroed_slot_is_found_with_everything_else_on_time(damaged):
    small = damaged()
    path = _timer_files(small, "shard-000/wheel")[0]
    slots = np.frombuffer(path.read_bytes(), f"V{SLOT_BYTES}")
    used = [at for at, slot in enumerate(slots) if any(bytes(slot))]
    _put(path, used[0] * SLOT_BYTES, bytes(SLOT_BYTES))
    small.advance(_DELAY_MS + 15_000)
    assert len(small.in_topic("t")) == 7
    small.advance(60_000)
    _expect_all(small)
    assert small.broker.status().swept == 1
    assert _shards_built_again(small) == 1


def test_a_shard_that_lost_something_is_built_again_before_more_is_due(damaged):
    small = damaged()
    small.send("t", b"8", deliver_at_ms=small.clock.now_ms() + 2 * _DELAY_MS)
    small.advance(30_000)
    for path in _timer_files(small, "*/wheel"):
        _put(path, 0, bytes(path.stat().st_size))
    small.advance(2 * _DELAY_MS)
    last = next(row for row in small.in_topic("t") if row.body == b"8")
    assert last.released_at_ms == last.deliver_at_ms
    _expect_all(small, once=9)
    assert small.broker.status().swept == 8


@pytest.mark.parametrize("bit", [0, 3, 7])
@pytest.mark.parametrize(("name", "at", "size"), _FIELDS)
def test_a_flipped_bit_in_any_field_of_a_unit_loses_nothing(damaged, name, at, size, bit):
    small = damaged()
    path = _timer_files(small, "shard-001/timer-log/*")[0]
    for byte in {0, size - 1}:
        place = 2 * UNIT_BYTES + at + byte
        _put(path, place, bytes([path.read_bytes()[place] ^ 1 << bit]))
    small.advance(_DELAY_MS + 75_000)
    _expect_all(small)


def test_a_unit_that_names_another_message_is_noticed_on_time(damaged):
    small = damaged()
    path = _timer_files(small, "shard-000/timer-log/*")[0]
    at = UNIT.fields["seq"][1] + 7
    _put(path, at, bytes([path.read_bytes()[at] ^ 2]))
    small.advance(_DELAY_MS + 15_000)
    _expect_all(small)
    assert small.broker.status().swept == 0
    assert _shards_built_again(small) == 1


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("is_zeroed", [False, True])
def test_a_damaged_ready_file_is_handed_over_again(damaged, store, is_zeroed):
    small = damaged(timer_store=store)
    small.clock.advance(_DELAY_MS - 30_000 - 20_000)
    small.broker._turn_service.run_once()  # within the lead: ready files that were not read yet
    paths = [path for path in _timer_files(small, "*/ready/*") if parse_ready_name(path.name)]
    assert paths
    for path in paths:
        content = path.read_bytes()
        _put(path, 0, bytes(len(content)) if is_zeroed else content[:-5] + bytes([content[-5] ^ 1]))
    small.advance(20_000 + 15_000)
    _expect_all(small)
    assert small.broker.status().swept == 0
    assert _shards_built_again(small) == len(paths)


@pytest.mark.parametrize("store", STORES)
def test_a_damaged_ready_file_does_not_keep_the_broker_from_opening(damaged, store):
    small = damaged(timer_store=store)
    small.clock.advance(_DELAY_MS - 30_000 - 20_000)
    small.broker._turn_service.run_once()
    small.kill()
    for path in _timer_files(small, "*/ready/*"):
        _put(path, 0, bytes(100))
    small.open()
    small.advance(20_000 + 15_000)
    _expect_all(small)
    assert _shards_built_again(small) > 0


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["cursor.?", "header.?", "attempt.?", "*"])
def test_damaged_small_files_of_a_stopped_broker_are_made_again(damaged, store, name):
    small = damaged(timer_store=store)
    small.close()
    for path in (*_timer_files(small, f"*/{name}"), small.directory / "timer" / "target"):
        _put(path, 0, os.urandom(min(40, path.stat().st_size)))
    small.disk = type(small.disk)(1)
    small.open()
    small.advance(_DELAY_MS + 75_000)
    _expect_all(small)


def test_damage_to_rocksdb_under_a_running_broker_is_built_again(damaged):
    small = damaged(timer_store="rocksdb")
    small.close()
    small.disk = type(small.disk)(1)
    small.open()
    for path in _timer_files(small, "*/rocksdb/*"):
        if path.suffix in (".sst", ".log"):
            _put(path, 0, bytes(path.stat().st_size))
    small.advance(_DELAY_MS + 75_000)
    _expect_all(small)


@pytest.mark.parametrize("delay_ms", [5_000, 29_000])
def test_a_message_lost_from_the_near_set_is_swept(make_small, delay_ms):
    small = make_small(queues_per_topic=1)
    small.is_timer_damaged = True
    small.send("t", b"0", deliver_at_ms=small.clock.now_ms() + delay_ms)
    small.send("t", b"1", deliver_at_ms=small.clock.now_ms() + delay_ms + 200_000)
    assert len(small.broker.releaser._near.take_due(1 << 60, 10)) == 1
    small.advance(delay_ms)
    assert small.bodies("t") == []
    small.advance(75_000)
    assert small.bodies("t") == [b"0"]
    assert (small.broker.status().swept, _shards_built_again(small)) == (1, 0)


def test_a_message_lost_from_its_level_is_swept(make_small):
    small = make_small(queues_per_topic=1)
    small.is_timer_damaged = True
    for number in range(3):
        small.send("t", b"%d" % number, level=2)
    small.broker.store.levels.take_due(1 << 60, 1)
    small.advance(6_000)
    assert len(small.bodies("t")) == 2
    small.advance(70_000)
    _expect_all(small, once=3)
    assert (small.broker.status().swept, _shards_built_again(small)) == (1, 0)


@pytest.mark.parametrize("release_rate_max", [0, 1])
def test_what_a_topic_holds_back_is_not_swept(make_small, release_rate_max):
    small = make_small(queues_per_topic=1)
    for number in range(200):
        small.send("t", b"%d" % number, deliver_at_ms=small.clock.now_ms() + 1_000 + number)
    small.broker.topics.change("t", is_paused=not release_rate_max, release_rate_max=release_rate_max)
    small.advance(180_000)
    assert small.broker.status().swept == 0
    assert [wait.waits_for for wait in small.broker.status().waits] == [
        "rate" if release_rate_max else "pause"
    ]


def test_a_message_lost_beside_many_that_are_held_back_is_still_found(make_small):
    small = make_small(queues_per_topic=1)
    small.is_timer_damaged = True
    small.send("other", b"0", deliver_at_ms=small.clock.now_ms() + 1_500)
    small.broker.releaser._near.take_due(1 << 60, 10)
    receipts = [small.send("t", b"x", deliver_at_ms=small.clock.now_ms() + 1_000) for _ in range(20)]
    small.broker.topics.change("t", is_paused=True)
    small.advance(2_000)
    small.broker.cancel([receipt.handle for receipt in receipts[:10]])
    small.advance(2 * MINUTE_MS)
    assert small.bodies("other") == [b"0"]
    assert small.broker.status().swept == 1
    assert len(small.broker.views.pending(limit=100)) == 10


class _PassingClock(ManualClock):
    """A clock that counts as the machine's, so that looks follow each other in time; moved by hand."""

    is_simulated = False


def _pass(small: SmallBroker, ms: int) -> None:
    """Let time pass as a broker with threads sees it: a step of every service each second."""
    for _ in range(ms // 1_000):
        small.clock.advance(1_000)
        small.broker.run_due()


@pytest.mark.parametrize("into_minute_ms", [0, 1_000, 30_000, 59_000])
def test_where_time_passes_by_itself_what_was_lost_is_there_within_75_seconds(make_small, into_minute_ms):
    small = make_small(queues_per_topic=1, clock=_PassingClock(START_MS))
    small.is_timer_damaged = True
    due_ms = START_MS + MINUTE_MS + into_minute_ms
    small.send("t", b"0", deliver_at_ms=due_ms)
    small.send("t", b"1", deliver_at_ms=due_ms + 500_000)
    _pass(small, 30_000)
    for path in _timer_files(small, "*/wheel"):
        _put(path, 0, bytes(path.stat().st_size))
    small.broker.releaser._near.take_due(1 << 60, 10)
    _pass(small, due_ms - START_MS - 30_000 + 74_000)
    assert small.bodies("t") == [b"0"]
    assert small.broker.status().swept == 1
    _pass(small, 500_000)
    assert small.bodies("t") == [b"0", b"1"]  # of another shard, which lost something too
    assert small.broker.status().swept == 2


@pytest.mark.parametrize("flag", [FLAG_NEAR, FLAG_LEVEL])
def test_a_message_that_no_step_was_called_for_is_released(make_small, flag):
    """Its entry was damaged before the timer looked at it: then nothing calls for the timer to absorb it."""
    small = make_small(queues_per_topic=1, clock=_PassingClock(START_MS))
    small.is_timer_damaged = True
    seq = small.send("t", b"0", deliver_at_ms=START_MS + 200_000).handle.seq
    _put(small.directory / "index" / "entries" / f"{0:020d}", seq * ENTRY.itemsize + _FLAGS, bytes([flag]))
    _pass(small, 200_000 + 75_000)
    assert small.bodies("t") == [b"0"]
    small.check()


def test_where_time_passes_by_itself_nothing_is_swept_while_all_is_well(make_small):
    small = make_small(queues_per_topic=1, clock=_PassingClock(START_MS))
    for number in range(60):
        small.send("t", b"x", deliver_at_ms=small.clock.now_ms() + number * 5_000)
        _pass(small, 5_000)
    small.broker.topics.change("t", is_paused=True)
    _pass(small, 300_000)
    assert small.broker.status().swept == 0
    small.broker.topics.change("t", is_paused=False)
    _pass(small, 10_000)
    assert len(small.in_topic("t")) == 60


@pytest.mark.slow
def test_what_no_scan_finds_is_scanned_ever_more_seldom_and_shows_in_waits(make_small, monkeypatch):
    small = make_small(queues_per_topic=1, clock=_PassingClock(START_MS))
    small.is_timer_damaged = True
    small.send("t", b"0", deliver_at_ms=START_MS + 5_000)
    small.broker.releaser._near.take_due(1 << 60, 10)
    scans = []

    def find_nothing(*args: object) -> Rows:
        scans.append(small.clock.now_ms())
        return NO_ROWS

    monkeypatch.setattr(sweeper, "overdue_rows", find_nothing)
    _pass(small, 3_600_000)
    assert 3 <= len(scans) <= 8
    assert [(wait.waits_for, wait.messages) for wait in small.broker.status().waits] == [("sweep", 1)]
    monkeypatch.undo()
    _pass(small, 3_660_000)
    assert small.bodies("t") == [b"0"]
    assert small.broker.status().waits == []
