"""The whole engine against the heap timer: whatever is added, however it is stepped, whenever it dies."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples

# The harness belongs to the unit tests; pytest's importlib mode puts no test directory on the path.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "timer"))

from helpers.timer_harness import NOT_FAR, STORES, ShardHarness, WatchedEngine
from tidemill.store.formats.entry_format import FLAG_NEAR
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash
from tidemill.timer.check import check_timer
from tidemill.timer.settings import StepLimits, StoreKind, TimerSettings

START = 5_000
WINDOW = 8
pytestmark = pytest.mark.slow

RELAXED = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def small(tick_ms: int, shards: int, store: StoreKind, segment_units: int = 6) -> TimerSettings:
    return TimerSettings(
        store=store,
        tick_ms=tick_ms,
        shards=shards,
        slots=32,
        roll_window_slots=WINDOW,
        segment_bytes=52 * segment_units + 20,
        wheel_sync_bytes=700,
    )


@st.composite
def scripts(draw):
    """Acts: add timers so many ms from the clock, let time pass, reopen, cut the head."""
    delays = st.one_of(
        st.integers(-3_000, 3_000),
        st.integers(0, 4 * WINDOW * 1_000),
        st.sampled_from([(WINDOW + n) * 1_000 for n in (-1, 0, 1)]),
        st.integers(0, 200_000),
        st.just(4_500),
    )
    act = st.one_of(
        st.tuples(st.just("add"), st.lists(delays, min_size=1, max_size=30)),
        st.tuples(st.just("add near"), st.integers(1, 4)),
        st.tuples(st.just("pass"), st.one_of(st.integers(0, 5_000), st.integers(0, 90_000), st.just(-9_000))),
        st.tuples(st.just("reopen"), st.just(0)),
    )
    return draw(st.lists(act, min_size=1, max_size=25))


limits_drawn = st.builds(
    StepLimits,
    rows_max=st.integers(1, 40),
    due_max=st.integers(1, 20),
    ticks_max=st.one_of(st.none(), st.integers(1, 10)),
)


@pytest.mark.parametrize("store", STORES)
@given(scripts(), limits_drawn, st.sampled_from([100, 200, 500, 1000]), st.integers(1, 3))
@RELAXED
def test_every_timer_is_handed_over_once_in_the_step_of_its_tick(store, script, limits, tick_ms, shards):
    with tempfile.TemporaryDirectory() as folder:
        harness = ShardHarness(Path(folder) / "timer", small(tick_ms, shards, store))
        harness.limits = limits
        harness.open()
        now_ms = START * 1_000
        reached = now_ms // tick_ms
        assert harness.run(reached) == []
        for kind, value in script:
            if kind == "add":
                harness.add(*[now_ms + delay_ms for delay_ms in value])
            elif kind == "add near":
                harness.add(*[now_ms + 1_000] * value, flags=FLAG_NEAR)
            elif kind == "pass":
                now_ms += value
                reached = max(reached, now_ms // tick_ms)
                assert harness.run(now_ms // tick_ms) == harness.expect(reached)
            else:
                harness.reopen()
            harness.check()
        end = (now_ms + 400_000) // tick_ms
        assert harness.run(end) == harness.expect(end)
        assert not len(harness.oracle)
        assert all(engine.cursor.next_due_tick is None for engine in harness.engines)
        harness.close()
        harness.check()


@pytest.mark.parametrize("store", STORES)
@given(scripts(), limits_drawn)
@RELAXED
def test_nothing_is_handed_over_before_the_tick_of_its_step(store, script, limits):
    with tempfile.TemporaryDirectory() as folder:
        harness = ShardHarness(Path(folder) / "timer", small(1000, 1, store))
        harness.limits = limits
        harness.open()
        now_ms = START * 1_000
        harness.run(START)
        for kind, value in script:
            if kind == "add":
                harness.add(*[now_ms + delay_ms for delay_ms in value])
            elif kind == "pass":
                now_ms += max(0, value)
            harness.step(now_ms // 1_000)
            assert all(due_ms < now_ms // 1_000 * 1_000 for due_ms, _ in harness.collect())
        harness.close()
        harness.check()


@pytest.mark.parametrize("store", STORES)
@given(
    script=scripts(),
    limits=limits_drawn,
    crash_at=st.integers(1, 120),
    crash_after=st.booleans(),
    power_cut=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@settings(RELAXED, max_examples=examples(50))
def test_a_crash_anywhere_loses_nothing(store, script, limits, crash_at, crash_after, power_cut, seed):
    with tempfile.TemporaryDirectory() as folder:
        plan = FaultPlan(crash_at=crash_at, crash_after=crash_after, count_writes=True)
        disk = FaultyDisk(seed)
        harness = ShardHarness(Path(folder) / "timer", small(1000, 1, store, segment_units=4), disk)
        harness.limits = limits
        harness.open()
        disk.arm(plan)
        WatchedEngine.rebuild_count = 0
        now_ms = START * 1_000
        waiting = list(script)
        crashes = 0
        while True:
            try:
                if not harness.engines:
                    harness.open()
                harness.run(now_ms // 1_000)
                if not waiting:
                    break
                kind, value = waiting.pop(0)
                if kind == "add":
                    harness.add(*[now_ms + delay_ms for delay_ms in value])
                elif kind == "pass":
                    now_ms += max(0, value)
                elif kind == "reopen":
                    harness.close()
            except SimulatedCrash:
                crashes += 1
                # The second process dies too, while it repairs what the first has left.
                plan = (
                    FaultPlan(crash_at=crash_at % 13 + 1, count_writes=True) if crashes < 3 else FaultPlan()
                )
                harness.disk = harness.disk.crash(power_cut=power_cut, plan=plan)
                harness.engines = []
                assert check_timer(harness.disk, harness.directory, is_crashed=True) == []
        event(f"crashes: {crashes}")
        # Building again would lose nothing either, but takes as long as all that is pending.
        assert WatchedEngine.rebuild_count == 0
        harness.disk.arm(FaultPlan())
        now_ms += 400_000
        harness.run(now_ms // 1_000)
        harness.close()
        harness.check()
        handed = {seq for _, seq in harness.handed}
        entries = harness.entries.rows(0, len(harness.entries))
        far = [seq for seq in range(len(entries)) if not entries["flags"][seq] & NOT_FAR]
        assert handed == set(far), f"missing {set(far) - handed}; {list(harness.disk.trace)[-30:]}"
        harness.disk.close()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("crash_after", [False, True])
@pytest.mark.parametrize("ticks", [9, 40])
def test_a_crash_between_any_two_acts_of_one_step_is_taken_back(
    tmp_path, store, power_cut, crash_after, ticks
):
    """One step that absorbs, rolls, hands over and fills segments, killed at each of its operations.

    Forty ticks are more than the wheel has slots: the step must not write over what it has to drain.
    """
    crash_at, died = 0, True
    while died:
        crash_at += 1
        disk = FaultyDisk(seed=crash_at)
        harness = ShardHarness(
            tmp_path / f"timer-{crash_at}", small(1000, 1, store, segment_units=4), disk
        ).open()
        harness.run(START)
        harness.add(*[(START + n % 20) * 1000 for n in range(30)])
        harness.run(START + 2)
        harness.add(
            *[(START + n % 30) * 1000 for n in range(30)], *[(START + 40 + n) * 1000 for n in range(9)]
        )
        WatchedEngine.rebuild_count = 0
        disk.arm(FaultPlan(crash_at=crash_at, crash_after=crash_after, count_writes=True))
        try:
            harness.step(START + ticks)
            died = False
            disk.arm(FaultPlan())
        except SimulatedCrash:
            harness.disk = disk.crash(power_cut=power_cut)
            harness.engines = []
            harness.open()
            harness.check()
        harness.run(START + 60)
        assert {seq for _, seq in harness.handed} == set(range(69)), f"crash at {crash_at}"
        assert WatchedEngine.rebuild_count == 0
        harness.close()
        harness.check()
        harness.disk.close()
    assert crash_at > 8


def _placements_expected(seq: int, due_tick: int, open_tick: int) -> int:
    """How often a wheel that turns tick by tick places a timer, reckoned for this one alone."""
    placements = 1
    while due_tick >= open_tick + WINDOW:  # a roll slot: one of the window's last two, by seq
        open_tick += WINDOW - (seq >> 4) % 2
        if due_tick < open_tick:
            break
        placements += 1
    return placements


@pytest.mark.parametrize("store", STORES)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(-3_000, 200_000)), min_size=1, max_size=60),
    st.one_of(st.none(), st.tuples(st.integers(1, 400), st.booleans(), st.booleans())),
    st.integers(0, 1 << 30),
)
@settings(RELAXED, max_examples=examples(40))
def test_every_timer_says_how_often_it_was_rolled_also_after_a_crash(store, timers, crash, seed):
    with tempfile.TemporaryDirectory() as folder:
        disk = FaultyDisk(seed)
        harness = ShardHarness(Path(folder) / "timer", small(1000, 1, store), disk)
        harness.open()
        harness.run(START)
        expected: dict[int, int] = {}
        if crash is not None:
            disk.arm(FaultPlan(crash_at=crash[0], crash_after=crash[1], count_writes=True))
        for tick in range(START + 1, START + 240):
            for delay_ms in [ms for wait, ms in timers if START + 1 + wait == tick]:
                (seq,) = harness.add(tick * 1_000 + delay_ms)
                is_wheel = store is StoreKind.WHEEL
                expected[seq] = _placements_expected(seq, tick + delay_ms // 1_000, tick) if is_wheel else 1
            try:
                harness.run(tick)
            except SimulatedCrash:
                assert crash is not None
                harness.disk = harness.disk.crash(power_cut=crash[2], plan=FaultPlan())
                harness.engines = []
                harness.open()
                harness.run(tick)
        assert harness.placements == expected
        event(f"rolled at most {max(expected.values()) - 1} times")
        harness.close()
        harness.check()
        harness.disk.close()
