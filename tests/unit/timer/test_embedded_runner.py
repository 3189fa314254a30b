"""The embedded runner and the idle rule: when steps are taken, and that no message is late for it."""

from __future__ import annotations

import pytest

from helpers.timer_harness import SMALL, EntryList
from tidemill.core.errors import DirectoryLockedError, DiskFullError
from tidemill.log.disk import RealDisk
from tidemill.store.formats.entry_format import FLAG_NEAR
from tidemill.testing import FaultyDisk
from tidemill.timer.check import check_timer
from tidemill.timer.embedded_runner import EmbeddedRunner
from tidemill.timer.idle_rule import ShardPositions, call_for_step, target_tick
from tidemill.timer.settings import StepLimits, TimerSettings
from tidemill.timer.target import raise_epoch, read_target

LEAD = 4_000
NOW = 1_000_000


def call(rows=0, stored_at=None, due=None, now=NOW):
    return call_for_step(ShardPositions(rows, stored_at, due), now, LEAD, 1_000, rows_max=10)


def test_nothing_waiting_calls_for_nothing():
    assert (call().is_called_for, call().wake_ms) == (False, None)
    assert not call(rows=9).is_called_for


def test_many_rows_call_for_a_step():
    assert call(rows=10).is_called_for


def test_an_old_far_entry_calls_for_a_step():
    assert call(rows=1, stored_at=NOW - LEAD // 4).is_called_for
    waiting = call(rows=1, stored_at=NOW - LEAD // 4 + 1)
    assert (waiting.is_called_for, waiting.wake_ms) == (False, NOW + 1)


def test_a_timer_due_soon_calls_for_a_step():
    assert call(due=(NOW + 3_000) // 1_000).is_called_for
    waiting = call(due=NOW // 1_000 + 10)
    assert (waiting.is_called_for, waiting.wake_ms) == (False, NOW + 10_000 - 3_000)


def test_an_entry_from_the_future_calls_at_once():
    # The clock was set back: an entry behind this one may be older, by the time that counts now.
    assert call(rows=2, stored_at=NOW + 300_000).is_called_for


def test_with_a_short_lead_no_step_is_due_before_the_whole_slot_is_within_it():
    for now in range(NOW, NOW + 12_000, 100):
        answer = call_for_step(ShardPositions(0, None, 1_010), now, 2_000, 1_000, rows_max=10)
        assert answer.is_called_for == (target_tick(now, 2_000, 1_000) > 1_010)


def test_the_wake_time_is_the_first_moment_that_calls():
    for due in range(1_000, 1_020):
        answer = call(due=due)
        if not answer.is_called_for:
            assert not call(due=due, now=answer.wake_ms - 1).is_called_for
            assert call(due=due, now=answer.wake_ms).is_called_for


@pytest.fixture
def runner(tmp_path):
    directory = tmp_path / "timer"
    settings = TimerSettings(1000, 2, 32, 8, 400, 600)
    made = EmbeddedRunner(
        RealDisk(), directory, settings, EntryList(), lead_ms=LEAD, limits=StepLimits(rows_max=50)
    )
    made.open(raise_epoch(RealDisk(), directory, NOW, 0), start_seq=0)
    yield made
    made.close()
    assert check_timer(RealDisk(), directory) == []


def test_a_disk_too_full_to_open_leaves_no_lock_behind(tmp_path):
    """Else the next try would find a shard held by ourselves, and put it aside."""
    directory = tmp_path / "timer"
    with FaultyDisk() as disk:
        epoch = raise_epoch(disk, directory, NOW, 0)
        runner = EmbeddedRunner(disk, directory, TimerSettings(shards=2), EntryList(), lead_ms=LEAD)
        tries = 0
        for blocks in range(1, 100):  # until there is space for all of it
            disk.capacity_bytes = blocks * 4096
            try:
                runner.open(epoch, start_seq=0)
                break
            except DiskFullError:
                tries += 1
                assert runner.cursors == ()
        assert tries > 2
        assert len(runner.cursors) == 2
        runner.close()


def handed(runner):
    return sorted(
        int(seq)
        for engine in runner._engines
        for name in engine.ready.names()
        for seq in engine.ready.read(name)[1]["seq"]
    )


def test_a_far_entry_is_absorbed_within_a_quarter_and_handed_over_within_the_lead(runner):
    entries = runner._entries
    assert runner.step(NOW, 0) is None
    entries.add([NOW + 10_000], stored_at_ms=NOW)
    wake = runner.step(NOW + 10, 1)
    assert wake == NOW + LEAD // 4
    wake = runner.step(wake, 1)
    assert [cursor.seq for cursor in runner.cursors] == [1, 1]
    assert wake == NOW + 10_000 - 3_000
    assert runner.step(wake - 1, 1) == wake
    assert handed(runner) == []
    assert runner.step(wake, 1) is None
    assert handed(runner) == [0]
    assert runner.lag_ms(wake) == 0


def test_near_entries_call_for_nothing_until_they_are_many(runner):
    runner._entries.add([NOW + 1_000] * 49, flags=FLAG_NEAR, stored_at_ms=NOW)
    assert runner.step(NOW + 60_000, 49) is None
    assert sum(cursor.step for cursor in runner.cursors) == 0
    runner._entries.add([NOW + 1_000], flags=FLAG_NEAR, stored_at_ms=NOW)
    assert runner.step(NOW + 60_000, 50) is None
    assert runner.cursors[0].seq == 50


def test_an_idle_call_does_no_work(runner):
    runner._entries.add([NOW + 100_000], stored_at_ms=NOW)
    wake = runner.step(NOW + 2_000, 1)
    steps = sum(cursor.step for cursor in runner.cursors)
    for ms in range(1, 50):
        assert runner.step(NOW + 2_000 + ms, 1) == wake
    assert sum(cursor.step for cursor in runner.cursors) == steps


def test_a_backlog_is_worked_off_in_bounded_steps(runner):
    runner._entries.add([NOW + 5_000 + n for n in range(500)], stored_at_ms=NOW)
    calls, wake = 0, NOW + 60_000
    while wake is not None:
        assert wake == NOW + 60_000
        wake = runner.step(NOW + 60_000, 500)
        calls += 1
    assert handed(runner) == list(range(500))
    assert calls == 10


def test_run_until_reached_moves_every_shard(runner):
    runner._entries.add([NOW + n * 1_000 for n in range(40)], stored_at_ms=NOW)
    runner.run_until_reached(NOW + 20_000, 40)
    assert min(cursor.tick for cursor in runner.cursors) == target_tick(NOW + 20_000, LEAD, 1_000)
    assert handed(runner) == list(range(24))
    assert runner.clear_tick == NOW // 1_000 + 24
    runner.run_until_reached(NOW + 1_000, 40)
    assert min(cursor.tick for cursor in runner.cursors) == target_tick(NOW + 20_000, LEAD, 1_000)


def test_a_runner_whose_epoch_has_passed_rests(runner, tmp_path):
    runner._entries.add([NOW + 5_000], stored_at_ms=NOW - 9_000)
    raise_epoch(RealDisk(), tmp_path / "timer", NOW, 0)
    assert runner.step(NOW, 1) is None
    assert runner.is_stale
    assert handed(runner) == []
    runner.run_until_reached(NOW, 1)


def test_a_second_runner_is_refused_and_holds_nothing(runner, tmp_path):
    second = EmbeddedRunner(
        RealDisk(), tmp_path / "timer", TimerSettings(1000, 2, 32, 8, 400, 600), EntryList(), lead_ms=LEAD
    )
    with pytest.raises(DirectoryLockedError):
        second.open(99, 0)
    assert second._engines == []


def test_fewer_shards_drop_the_surplus_and_absorb_again(runner, tmp_path):
    runner._entries.add([NOW + 50_000] * 9, stored_at_ms=NOW)
    runner.run_until_reached(NOW, 9)
    runner.close()
    runner._settings = SMALL
    runner.open(raise_epoch(RealDisk(), tmp_path / "timer", NOW, 0), start_seq=0)
    assert RealDisk().names(tmp_path / "timer") == ["shard-000", "target"]
    wake = runner.step(NOW + 1_000, 9)
    assert wake is not None
    runner.step(wake, 9)
    runner.run_until_reached(NOW + 60_000, 9)
    assert handed(runner) == list(range(9))


def test_the_epoch_rises_over_a_lost_or_torn_target(runner, tmp_path):
    directory = tmp_path / "timer"
    runner.run_until_reached(NOW, 0)
    before = read_target(RealDisk(), directory)
    (directory / "target").write_bytes(b"torn")
    assert raise_epoch(RealDisk(), directory, NOW, 0) == before.epoch + 1
    (directory / "target").unlink()
    assert raise_epoch(RealDisk(), directory, NOW, 0) == before.epoch + 1
