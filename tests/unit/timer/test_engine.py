"""The engine of a shard: what it hands over, and when; what it refuses; what it builds again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.timer_harness import SMALL, STORES, ShardHarness
from tidemill.core.errors import DirectoryLockedError
from tidemill.core.processes import process_started
from tidemill.log.disk import RealDisk
from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR
from tidemill.timer.engine import ShardEngine, StepTarget
from tidemill.timer.ready_format import Runner
from tidemill.timer.settings import StepLimits, StoreKind, TimerSettings
from tidemill.timer.shard_lock import parse_holder
from tidemill.timer.target import Target, raise_epoch, write_target

W = SMALL.roll_window_slots
START = 1_000


def test_a_timer_is_handed_over_when_its_slot_has_passed(shard):
    shard.run(START)
    seqs = shard.add((START + 3) * 1000 + 250)
    assert shard.run(START + 3) == []
    assert shard.run(START + 4) == [((START + 3) * 1000 + 250, seqs[0])]
    assert shard.run(START + 50) == []


def test_past_and_zero_delays_go_out_in_the_same_step(shard):
    shard.run(START)
    shard.add(0, START * 1000 - 1, START * 1000, -5_000)
    outcome = shard.step(START)
    assert outcome.work.handed_over == 3
    assert shard.collect() == [(-5_000, 3), (0, 0), (START * 1000 - 1, 1)]
    assert shard.run(START + 1) == [(START * 1000, 2)]


def test_near_and_level_entries_are_left_to_others(shard):
    shard.run(START)
    shard.add((START + 1) * 1000, flags=FLAG_NEAR)
    shard.add((START + 1) * 1000, flags=FLAG_LEVEL)
    assert shard.run(START + 40) == []
    assert shard.engines[0].cursor.seq == 2


@pytest.mark.parametrize("slots_ahead", [W - 1, W, W + 1, 2 * W - 1, 2 * W, 3 * W + 1])
def test_a_timer_at_the_roll_boundary_comes_in_its_own_tick(shard, slots_ahead):
    shard.run(START)
    shard.add((START + slots_ahead) * 1000 + 999)
    for tick in range(START, START + slots_ahead + 1):
        assert shard.run(tick) == []
        shard.check()
    assert len(shard.run(START + slots_ahead + 1)) == 1


def test_a_delay_of_ten_years_comes_to_its_end_in_bounded_steps(tmp_path, store):
    settings = TimerSettings(tick_ms=1000, shards=1, store=store)
    shard = ShardHarness(tmp_path / "timer", settings).open()
    start = 1_800_000_000
    shard.run(start)
    ten_years = 3650 * 86_400
    shard.add((start + ten_years) * 1000 + 7, (start + 86_400) * 1000)
    assert len(shard.run(start + 86_401)) == 1
    assert shard.run(start + ten_years, steps_max=2_000) == []
    assert shard.run(start + ten_years + 1) == [((start + ten_years) * 1000 + 7, 0)]
    # Long behind the cursor: the TimerLog has not grown by what was rolled.
    shard.close()
    shard.check()


def test_a_pipeline_that_stood_still_longer_than_the_ring_loses_nothing(tmp_path, store):
    settings = TimerSettings(tick_ms=1000, shards=1, store=store)
    shard = ShardHarness(tmp_path / "timer", settings).open()
    start, day = 1_800_000_000, 86_400
    shard.run(start)
    shard.add(*[(start + 60 + n * day // 3) * 1000 for n in range(90)])
    shard.run(start)
    now = start + 15 * day
    shard.add((now - 5) * 1000, (now + 5) * 1000, (now + 3 * day) * 1000)
    assert shard.run(now) == shard.expect(now)
    shard.check()
    assert shard.run(now + 30 * day) == shard.expect(now + 30 * day)
    assert not len(shard.oracle)
    shard.close()
    shard.check()


def test_the_wheel_wraps_without_mixing_laps(shard):
    shard.run(START)
    for lap in range(6):
        tick = START + lap * SMALL.slots
        shard.run(tick)
        shard.add(*[(tick + n) * 1000 + n for n in range(W)])
        shard.run(tick + 2)
        shard.check()
    shard.run(START + 7 * SMALL.slots)
    assert sorted(shard.handed) == shard.expect(START + 7 * SMALL.slots)


def test_a_forward_leap_hands_over_and_a_backward_leap_does_nothing(shard):
    shard.run(START)
    shard.add((START + 5) * 1000, (START + 500) * 1000)
    assert [seq for _, seq in shard.run(START + 300)] == [0]
    before = shard.engines[0].cursor
    assert shard.run(START + 10) == []
    assert shard.engines[0].cursor == before
    # What is stored while the clock is behind is due, seen from the tick that was reached.
    shard.add((START + 20) * 1000)
    assert [seq for _, seq in shard.run(START + 11)] == [2]
    assert shard.engines[0].cursor.tick == START + 300
    assert [seq for _, seq in shard.run(START + 501)] == [1]


def test_a_step_asked_twice_is_done_once(shard):
    shard.run(START)
    shard.add((START + 1) * 1000, (START + 4) * 1000)
    shard.run(START + 2)
    cursor, log_end = shard.engines[0].cursor, shard.engines[0].cursor.mark.log_end
    outcome = shard.step(START + 2)
    assert outcome.has_reached
    assert shard.engines[0].cursor == cursor
    assert shard.step(START + 1, seq=1).cursor.mark.log_end == log_end
    assert shard.collect() == []


def test_limits_bound_a_step(shard):
    shard.run(START)
    shard.add(*[(START + 1 + n % 4) * 1000 + n for n in range(40)])
    shard.step(START, seq=1)
    shard.limits = StepLimits(rows_max=16, due_max=4, ticks_max=2)
    first = shard.step(START + 9)
    assert first.cursor.seq == 17
    assert not first.has_reached
    rows, steps = [], 0
    outcome = first
    while not outcome.has_reached:
        outcome = shard.step(START + 9)
        steps += 1
        came = shard.collect()
        assert len(came) <= 4 + 16
        rows += came
        shard.check()
    assert sorted(rows) == shard.expect(START + 9)
    assert steps > 4


def test_a_slot_too_full_for_one_step_is_handed_over_in_parts(shard):
    shard.run(START)
    shard.add(*[(START + 2) * 1000 + n % 7 for n in range(50)])
    shard.run(START)
    shard.limits = StepLimits(due_max=8)
    rows, parts = [], 0
    while not shard.step(START + 5).has_reached:
        came = shard.collect()
        assert len(came) <= 8
        parts += 1
        rows += came
        shard.check()
        if parts == 2:
            # A slot once begun takes no more: this one goes out at once.
            shard.add((START + 2) * 1000 + 3)
            assert shard.step(shard.engines[0].cursor.tick).work.handed_over == 1
            rows += shard.collect()
        if parts == 3:
            shard.reopen()
    rows += shard.collect()
    assert sorted(rows) == shard.expect(START + 5)
    assert parts >= 5


def test_the_last_slot_of_the_window_is_kept_while_a_slot_is_drained_in_parts(shard):
    shard.run(START)
    shard.add(*[(START + 2) * 1000] * 50)
    shard.run(START)
    shard.limits = StepLimits(due_max=30)
    shard.step(START + 3)
    assert shard.engines[0].cursor.is_inside_slot
    seqs = shard.add((START + 2 + W) * 1000)
    shard.step(START + 2)
    assert shard.engines[0].cursor.is_inside_slot
    shard.run(START + 3)
    assert shard.engines[0].cursor.next_due_tick == START + 2 + W
    assert shard.run(START + 3 + W) == [((START + 2 + W) * 1000, seqs[0])]
    assert len(shard.handed) == 51


def test_timers_below_the_head_are_dropped(shard):
    shard.run(START)
    shard.add((START + 2) * 1000, (START + 2) * 1000, (START + 2) * 1000)
    shard.run(START)
    shard.entries.head_seq = 2
    assert [seq for _, seq in shard.run(START + 5)] == [2]


def test_a_cursor_below_the_head_goes_on_from_the_head(shard):
    shard.run(START)
    shard.add((START + 2) * 1000, (START + 2) * 1000, (START + 2) * 1000)
    shard.entries.head_seq = 2
    assert [seq for _, seq in shard.run(START + 5)] == [2]


def test_a_stale_epoch_does_nothing(shard):
    shard.run(START)
    shard.add((START + 1) * 1000)
    raise_epoch(shard.disk, shard.directory, 0, 0)
    before = shard.engines[0].cursor
    outcome = shard.step(START + 5)
    assert outcome.is_stale
    assert not outcome.has_reached
    assert shard.engines[0].cursor == before
    assert shard.collect() == []


def test_an_epoch_below_the_cursors_is_stale_even_if_the_target_file_is_older(shard):
    shard.epoch = 9
    write_target(shard.disk, shard.directory, Target(9, 0, 0))
    shard.run(START)
    write_target(shard.disk, shard.directory, Target(3, 0, 0))
    shard.epoch = 3
    assert shard.step(START + 1).is_stale


def test_a_second_engine_on_a_shard_is_refused_with_the_holder(shard):
    second = ShardEngine(RealDisk(), shard.directory, 0, SMALL, shard.entries, runner=Runner.SPARK)
    with pytest.raises(DirectoryLockedError) as refused:
        second.open(0)
    holder = parse_holder(str(refused.value))
    assert holder is not None
    assert holder.started == process_started(holder.pid) > 0


@pytest.mark.parametrize(
    "changed",
    [
        TimerSettings(100, 1, 32, 8, 400, 600),
        TimerSettings(1000, 2, 32, 8, 400, 600),
        TimerSettings(1000, 1, 64, 8, 400, 600),
        TimerSettings(1000, 1, 32, 8, 800, 600),
    ],
)
def test_other_settings_build_the_shard_again(shard, changed):
    shard.run(START)
    shard.add(*[(START + n) * 1000 for n in range(2, 30)])
    shard.run(START + 6)
    settled = len(shard.handed)
    shard.close()
    shard.settings = replace(changed, store=shard.settings.store)
    shard.open(start_seq=settled)
    shard.run(60_000 * 1000 // changed.tick_ms)
    assert sorted(shard.handed) == shard.expect(60_000 * 1000 // changed.tick_ms)


def test_a_shard_changes_its_store_there_and_back_and_loses_nothing(shard):
    shard.run(START)
    shard.add(*[(START + n) * 1000 for n in range(2, 40)])
    for lap in range(1, 4):
        shard.run(START + 6 * lap)
        settled = len(shard.handed)
        shard.close()
        other = next(kind for kind in STORES if kind is not shard.settings.store)
        shard.settings = replace(shard.settings, store=other)
        shard.open(start_seq=settled)
        shard.check()
    names = shard.disk.names(shard.directory / "shard-000")
    assert ("rocksdb" in names) is (shard.settings.store is StoreKind.ROCKSDB)
    assert ("wheel" in names) is ("timer-log" in names) is (shard.settings.store is StoreKind.WHEEL)
    assert shard.run(START + 60) == shard.expect(START + 60)[settled:]
    assert sorted(seq for _, seq in shard.handed) == list(range(38))


def test_other_settings_drop_ready_files_and_hand_over_again(shard):
    shard.run(START)
    shard.add((START + 1) * 1000)
    shard.step(START + 3)
    shard.close()
    shard.settings = replace(shard.settings, tick_ms=500)
    shard.open()
    assert shard.engines[0].ready.names() == []
    assert [seq for _, seq in shard.run(2 * (START + 3))] == [0]


def test_a_deleted_directory_is_absorbed_again(shard):
    shard.run(START)
    shard.add(*[(START + n) * 1000 for n in range(2, 30)])
    shard.run(START + 6)
    shard.close()
    shard.disk.remove_tree(shard.directory)
    shard.known_ready.clear()
    shard.open(start_seq=0)
    shard.run(START + 40)
    assert {seq for _, seq in shard.handed} == set(range(28))


def test_ready_names_are_never_used_again_when_a_step_dies_before_its_cursor(shard, monkeypatch):
    shard.run(START)
    shard.add((START + 1) * 1000)
    engine = shard.engines[0]

    def broken(*_args, **_more):
        raise OSError("no cursor today")

    with monkeypatch.context() as patched:
        patched.setattr(engine._store, "commit", broken)
        with pytest.raises(OSError, match="no cursor"):
            shard.step(START + 3)
    first = engine.ready.names()
    # The releaser was quick: it has settled the file and removed it, before the step is tried again.
    shard.known_ready |= {(0, str(name)) for name in first}
    engine.ready.remove(first[0])
    engine.close()
    engine.open(0)
    assert [seq for _, seq in shard.run(START + 3)] == [0]
    assert set(engine.ready.names()).isdisjoint(first)


def test_the_next_due_tick_is_exact(shard):
    shard.run(START)
    assert shard.engines[0].cursor.next_due_tick is None
    shard.add((START + 5) * 1000, (START + 3) * 1000)
    shard.run(START)
    assert shard.engines[0].cursor.next_due_tick == START + 3
    shard.run(START + 4)
    assert shard.engines[0].cursor.next_due_tick == START + 5
    shard.run(START + 6)
    assert shard.engines[0].cursor.next_due_tick is None


def test_targets_of_other_shards_are_left_alone(tmp_path, store):
    shard = ShardHarness(tmp_path / "timer", replace(SMALL, shards=3, store=store)).open()
    shard.run(START)
    shard.add(*[(START + 1) * 1000] * 9)
    target = StepTarget(shard.epoch, 9, START + 3)
    for engine in shard.engines:
        assert engine.step(target, StepLimits()).work.handed_over == 3
        _, rows, _ = engine.ready.read(engine.ready.names()[-1])
        assert (rows["seq"] % 3 == engine.shard).all()
    shard.close()
    shard.check()
