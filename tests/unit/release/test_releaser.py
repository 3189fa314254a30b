"""The releaser: order, once, never early; FIFO, backlogs, bounded batches, a clock that leaps."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.small_broker import RETENTION_MS, START_MS
from tidemill.broker.query.table_conditions import Condition
from tidemill.broker.query.table_schemas import Wanted
from tidemill.core.model import Draft, Via
from tidemill.release import due_rows as by_value_module
from tidemill.release import overdue
from tidemill.store.formats.frames import Kind, Release
from tidemill.testing import ManualClock
from tidemill.timer.engine import StepTarget
from tidemill.timer.settings import StepLimits


def _seqs(small, topic="t"):
    rows = small.broker.store.queues.read((small.broker.topics.require(topic).id, 0), 0, 1 << 40)
    return rows["seq"].tolist()


def _release_frames(small):
    log = small.broker.store.log
    frames = log.frames(log.head, log.written_end)
    return [Release.read(frame.payload) for frame in frames if frame.kind == Kind.RELEASE]


def test_messages_go_by_due_time_and_then_in_order_of_arrival(small):
    dues = [5_000, 3_000, 5_000, 100_000, 3_000, 100_000, 4_000]
    small.broker.send([Draft("t", b"", delay_ms=due) for due in dues])
    small.advance(100_000)
    assert _seqs(small) == sorted(range(7), key=lambda seq: (dues[seq], seq))


def test_what_is_handed_over_twice_or_wrongly_is_released_once_at_its_own_time(small):
    small.broker.send([Draft("t", b"", delay_ms=due) for due in (1_000, 2_000, 3_000)])
    releaser = small.broker.releaser
    seqs = np.array([0, 1, 2, 0, 1, 2])
    releaser.add_near(np.full(6, START_MS), seqs)  # claims that all are due already
    releaser.add_near(np.array([START_MS]), np.array([1_000_000]))  # a seq that never was
    releaser.step(START_MS)
    assert _seqs(small) == []
    small.advance(2_500)
    assert _seqs(small) == [0, 1]
    releaser.add_near(np.full(6, START_MS), seqs)
    small.advance(500)
    assert _seqs(small) == [0, 1, 2]
    rows = small.in_topic("t")
    assert [m.released_at_ms - START_MS for m in rows] == [1_000, 2_000, 3_000]


def test_what_is_handed_over_with_wrong_times_goes_in_the_order_of_its_own(small):
    small.broker.send([Draft("t", b"", delay_ms=due) for due in (3_000, 2_000, 1_000)])
    small.broker.releaser.add_near(np.array([1, 2, 3]), np.array([0, 1, 2]))
    small.clock.advance(5_000)
    small.broker.run_due()
    assert _seqs(small) == [2, 1, 0]


def test_what_was_cancelled_after_it_was_handed_over_stays_away(small):
    receipts = [small.send("t", delay_ms=1_000) for _ in range(3)]
    far = [small.send("t", delay_ms=40_000) for _ in range(3)]
    small.advance(900)
    small.broker.cancel([receipts[1].handle])
    small.advance(35_000)  # the far ones lie in a ready file now
    small.broker.cancel([far[2].handle])
    small.advance(10_000)
    assert _seqs(small) == [0, 2, 3, 4]


def test_more_than_a_batch_goes_in_bounded_records_and_in_order(small):
    small.broker.releaser.rows_max = 10
    dues = [(i * 37) % 50 for i in range(95)]
    small.broker.send([Draft("t", b"", delay_ms=40_000 + due) for due in dues])
    small.advance(15_000)
    small.broker.send([Draft("t", b"", delay_ms=25_000 + due) for due in dues])  # near, beside the far ones
    small.clock.advance(30_000)
    small.broker.run_due()
    small.broker.run_due()
    both = dues + dues
    assert _seqs(small) == sorted(range(190), key=lambda seq: (both[seq], seq))
    frames = _release_frames(small)
    assert max(len(frame.seqs) for frame in frames) <= 10


def test_one_record_serves_all_that_is_due_at_once(small):
    small.broker.send([Draft(f"t{i % 5}", b"", delay_ms=1_000) for i in range(50)])
    small.advance(1_000)
    (frame,) = _release_frames(small)
    assert len(frame.seqs) == 50
    assert frame.groups["count"].tolist() == [10] * 5


def test_old_bytes_go_along_by_value_within_bounds(small, monkeypatch):
    monkeypatch.setattr(by_value_module, "_ROWS_MAX", 3)
    small.broker.send([Draft("t", b"%d" % i, delay_ms=RETENTION_MS * 3 // 4) for i in range(10)])
    small.fill_segment()
    small.fill_segment()
    small.clock.advance(RETENTION_MS * 3 // 4 - 20_000)
    small.send("t", b"young", delay_ms=20_000)
    small.advance(20_000)
    assert small.bodies("t") == [b"%d" % i for i in range(10)] + [b"young"]
    by_value = [len(frame.value_indexes) for frame in _release_frames(small)]
    assert sum(by_value) == 10
    assert max(by_value) <= 3
    small.kill()
    small.delete("index")
    small.open()
    assert small.bodies("t") == [b"%d" % i for i in range(10)] + [b"young"]


def test_a_fifo_group_keeps_its_order_across_near_and_far(small):
    """The later message is near and would be first to be known; the earlier comes through the wheel."""
    far = small.send("t", b"far", deliver_at_ms=START_MS + 40_000, message_group="g")
    small.clock.advance(39_999)  # the wheel has not turned meanwhile
    small.send("t", b"near", deliver_at_ms=START_MS + 40_001, message_group="g")
    small.clock.advance(5)
    small.broker._release_service.run_once()
    assert small.bodies("t") == []  # due, but the shards have not passed the time yet
    small.broker.run_due()
    small.broker.run_due()
    assert small.bodies("t") == [b"far", b"near"]
    assert far.handle.seq == 0


def test_a_fifo_group_waits_for_ready_files_that_are_not_announced_yet(small):
    """Another process steps the shards: its files are there a while before the broker takes notice."""
    small.send("t", b"second", deliver_at_ms=START_MS + 40_001, message_group="g")
    small.send("t", b"first", deliver_at_ms=START_MS + 40_000, message_group="g")
    small.clock.advance(50_000)
    timer_controller = small.broker._timer
    target = StepTarget(timer_controller._epoch, 2, (START_MS + 50_000) // 1_000)
    small.broker.releaser.ready_changed()
    for engine in timer_controller._runner._engines:
        assert small.bodies("t") == []
        assert engine.step(target, StepLimits()).work.handed_over == 1
        small.broker._release_service.run_once()
    assert small.bodies("t") == [b"first", b"second"]


def test_a_message_without_a_group_does_not_wait_for_the_shards(small):
    small.send("t", b"far", deliver_at_ms=START_MS + 40_000, message_group="g")
    small.clock.advance(39_999)
    small.send("t", b"near", deliver_at_ms=START_MS + 40_001)
    small.clock.advance(5)
    small.broker._release_service.run_once()
    assert small.bodies("t") == [b"near"]


@pytest.mark.parametrize("group", ["", "g"])
def test_a_backlog_larger_than_memory_is_found_again_in_order(small, group):
    small.broker.releaser.backlogs.rows_max = 4
    small.broker.topics.create("slow")
    small.broker.topics.create("t")
    small.broker.topics.change("slow", release_rate_max=5)
    for i in range(30):
        small.send("slow", b"%02d" % i, delay_ms=1_000 + i, message_group=group)
    small.advance(1_500)
    for i in range(30, 50):  # due while the earlier ones still wait
        small.send("slow", b"%02d" % i, delay_ms=100 + i, message_group=group)
    small.send("t", b"other", delay_ms=10)
    small.advance(20)
    assert small.bodies("t") == [b"other"]
    small.advance(12_000)
    assert small.bodies("slow") == [b"%02d" % i for i in range(50)]
    released = [m.released_at_ms for m in small.in_topic("slow")]
    assert all(later - earlier >= 1_000 for earlier, later in zip(released[5:], released[11:], strict=False))


def test_a_backlog_survives_a_restart(small):
    for i in range(10):
        small.send("t", b"%d" % i, delay_ms=1_000 if i % 2 else 50_000)
    small.broker.topics.change("t", is_paused=True)
    small.advance(60_000)
    small.kill_and_open()
    small.broker.run_due()
    small.broker.topics.change("t", is_paused=False)
    small.broker.run_due()
    assert small.bodies("t") == [b"1", b"3", b"5", b"7", b"9", b"0", b"2", b"4", b"6", b"8"]


def test_a_ready_file_goes_when_all_its_rows_are_settled(small):
    for i in range(6):
        small.send("t", delay_ms=40_000 + 1_000 * i)
    small.advance(41_500)
    ready = list(small.directory.glob("timer/*/ready/*"))
    assert ready
    small.advance(10_000)
    assert not list(small.directory.glob("timer/*/ready/*"))


def test_each_message_says_who_handed_it_over(small):
    small.send("t", delay_ms=1_000)
    small.send("t", delay_ms=90_000)
    small.send("t")
    small.advance(90_000)
    assert {m.via for m in small.in_topic("t")} == {Via.NEAR, Via.EMBEDDED, Via.DIRECT}


# -- a clock that leaps ---------------------------------------------------------------------------


@pytest.fixture
def leaping(small):
    """A small broker whose clock counts as the machine's own, so that leaps are watched for."""
    small.broker._guard.is_simulated = False
    small.broker.run_due()
    return small


def test_a_leap_forward_holds_releases_for_ten_seconds(leaping):
    leaping.send("t", b"x", delay_ms=3_600_000)
    leaping.clock.leap_ms(3_700_000)
    leaping.broker.run_due()
    leaping.clock.advance(9_999)
    leaping.broker.run_due()
    assert leaping.bodies("t") == []
    assert leaping.broker.status().clock_leaps == 1
    leaping.clock.advance(1)
    leaping.broker.run_due()
    assert leaping.bodies("t") == [b"x"]


def test_a_leap_forward_that_is_put_right_in_time_releases_nothing_early(leaping):
    near = leaping.send("t", b"near", delay_ms=20_000)
    far = leaping.send("t", b"far", delay_ms=3_600_000)
    leaping.clock.leap_ms(86_400_000)
    leaping.broker.run_due()
    leaping.clock.advance(5_000)
    leaping.broker.run_due()
    leaping.clock.leap_ms(-86_400_000)
    leaping.broker.run_due()
    assert leaping.bodies("t") == []
    for due_ms in (near.deliver_at_ms, far.deliver_at_ms):
        leaping.clock.advance(due_ms - 1 - leaping.clock.now_ms())
        for _ in range(3):
            leaping.broker.run_due()
        before = len(leaping.bodies("t"))
        leaping.clock.advance(1)
        for _ in range(3):
            leaping.broker.run_due()
        assert len(leaping.bodies("t")) == before + 1
    assert leaping.bodies("t") == [b"near", b"far"]


def test_a_leap_backward_releases_nothing_early_and_nothing_twice(leaping):
    for i in range(10):
        leaping.send("t", b"%d" % i, delay_ms=10_000 * (i + 1))
    leaping.clock.advance(50_000)
    leaping.broker.run_due()
    assert len(leaping.bodies("t")) == 5
    leaping.clock.leap_ms(-45_000)
    leaping.broker.run_due()
    leaping.send("t", b"after", delay_ms=1_000)
    for _ in range(100):
        leaping.clock.advance(1_000)
        leaping.broker.run_due()
    rows = leaping.in_topic("t")
    assert sorted(m.body for m in rows) == sorted([*(b"%d" % i for i in range(10)), b"after"])
    assert all(m.released_at_ms >= m.deliver_at_ms for m in rows)


def test_a_backlog_that_the_clock_ran_away_from_survives_a_restart(leaping):
    leaping.send("t", b"x", delay_ms=60_000)
    leaping.broker.topics.change("t", is_paused=True)
    leaping.clock.advance(61_000)
    leaping.broker.run_due()
    leaping.broker.run_due()
    leaping.clock.leap_ms(-30_000)
    leaping.kill_and_open()
    leaping.broker.run_due()
    leaping.broker.topics.change("t", is_paused=False)
    leaping.broker.run_due()
    assert leaping.bodies("t") == []
    leaping.clock.advance(30_000)
    leaping.broker.run_due()
    assert leaping.bodies("t") == [b"x"]


class _RealTime(ManualClock):
    """A clock that is not simulated: a doze ends at its moment, or wherever the test says."""

    is_simulated = False

    def __init__(self, small, wakes_at_ms=None):
        super().__init__(small.clock.now_ms())
        self._small, self._wakes_at_ms = small, wakes_at_ms
        self.dozes = []

    def doze(self, until_ms):
        self.dozes.append((until_ms - START_MS, _seqs(self._small)))
        self.advance_to(until_ms if self._wakes_at_ms is None else self._wakes_at_ms)


def _in_real_time(small, monkeypatch, **arguments):
    clock = _RealTime(small, **arguments)
    monkeypatch.setattr(small.broker.releaser, "_clock", clock)
    monkeypatch.setattr(small.broker.releaser, "_ahead_ms", 2)
    return clock


def test_what_falls_due_in_a_moment_is_worked_out_before_and_goes_at_its_own_millisecond(small, monkeypatch):
    small.broker.send([Draft("t", b"", delay_ms=due) for due in (1_000, 1_001, 1_001, 1_004)])
    clock = _in_real_time(small, monkeypatch)
    releaser = small.broker.releaser
    assert releaser.step(START_MS) == START_MS + 998
    clock.advance_to(START_MS + 998)
    assert releaser.step(clock.now_ms()) == START_MS + 1_002
    assert clock.dozes == [(1_000, []), (1_001, [0])]
    assert [m.released_at_ms - START_MS for m in small.in_topic("t")] == [1_000, 1_001, 1_001]


def test_a_clock_set_back_during_the_last_moment_lets_nothing_go_early(small, monkeypatch):
    small.send("t", delay_ms=1_000)
    clock = _in_real_time(small, monkeypatch, wakes_at_ms=START_MS + 999)
    clock.advance_to(START_MS + 999)
    releaser = small.broker.releaser
    assert releaser.step(clock.now_ms()) > START_MS + 999
    assert _seqs(small) == []
    clock.advance_to(START_MS + 1_000)
    releaser.step(clock.now_ms())
    assert _seqs(small) == [0]


def test_more_fifo_messages_than_a_record_wait_without_a_loop_and_go_in_order(make_small):
    """They wait for the shards; the step that finds them due must end, and let others go."""
    small = make_small(queues_per_topic=1, release_rows_max=3)
    small.send("t", b"far", deliver_at_ms=START_MS + 40_000, message_group="g")
    small.clock.advance(39_999)
    for number in range(10):
        small.send("t", b"%d" % number, deliver_at_ms=START_MS + 40_001, message_group="g")
    small.send("u", b"free", deliver_at_ms=START_MS + 40_002)
    small.clock.advance(5)
    small.broker._release_service.run_once()
    assert (small.bodies("t"), small.bodies("u")) == ([], [b"free"])
    small.broker.run_due()
    small.broker.run_due()
    assert small.bodies("t") == [b"far", *(b"%d" % number for number in range(10))]


def test_a_fifo_group_keeps_its_order_when_the_look_through_the_entries_ends_midway(make_small, monkeypatch):
    monkeypatch.setattr(overdue, "SCAN_ROWS", 4)
    small = make_small(queues_per_topic=1, release_rows_max=3)
    for number in range(20):
        small.send("t", b"%d" % number, delay_ms=40_000 - number % 2, message_group="g")
    small.kill_and_open()
    small.clock.advance(50_000)
    small.broker.run_due()
    small.broker.run_due()
    numbers = [int(body) for body in small.bodies("t")]
    assert numbers == [*range(1, 20, 2), *range(0, 20, 2)]


def test_what_was_due_before_it_was_sent_is_not_late(small):
    small.broker.send([Draft("t", b"", deliver_at_ms=due) for due in (1, START_MS - 60_000, START_MS + 50)])
    small.clock.advance(100)
    small.broker.run_due()
    late = small.broker.status().lateness_ms
    assert (late.count, late.max_ms, late.min_ms) == (3, 100, 50)
    assert [m.deliver_at_ms for m in small.in_topic("t")] == [1, START_MS - 60_000, START_MS + 50]
    assert _history_lateness(small) == [50, 100, 100]


def _history_lateness(small) -> list[int]:
    batches = small.broker.tables.read(Wanted("history", "t", columns=("lateness_ms",)))
    return sorted(late for batch in batches for late in batch["lateness_ms"].to_pylist())


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_rescheduled_into_the_past_is_late_only_since_then(small, is_killed):
    receipts = small.broker.send([Draft("t", b"", delay_ms=ms) for ms in (3_600_000, 3_600_001, 3_600_002)])
    small.advance(60_000)
    small.broker.topics.change("t", is_paused=True)
    first, second, third = (receipt.handle for receipt in receipts)
    small.broker.reschedule([first], deliver_at_ms=1)
    small.broker.reschedule([second], deliver_at_ms=START_MS + 30_000)
    small.broker.reschedule([third], deliver_at_ms=START_MS + 60_005)
    small.advance(100)
    if is_killed:
        small.kill_and_open()
    small.broker.topics.change("t", is_paused=False)
    small.broker.run_due()
    late = small.broker.status().lateness_ms
    assert (late.count, late.max_ms, late.min_ms) == (3, 100, 95)
    assert _history_lateness(small) == [95, 100, 100]


def test_a_condition_on_lateness_sees_what_the_column_shows(small):
    small.send("t", deliver_at_ms=1)
    small.clock.advance(70)
    small.broker.run_due()
    for least, count in ((70, 1), (71, 0)):
        where = (Condition("lateness_ms", ">=", least),)
        batches = small.broker.tables.read(Wanted("history", "t", where=where))
        assert sum(batch.num_rows for batch in batches) == count
