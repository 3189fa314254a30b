"""What only the wheel does: rolls, segments, slots set back and written again."""

from __future__ import annotations

import pytest

from helpers.timer_harness import SMALL, ShardHarness, WatchedEngine
from tidemill.core.errors import DiskFullError
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash
from tidemill.timer.check import check_timer
from tidemill.timer.settings import TimerSettings

W = SMALL.roll_window_slots
START = 1_000


def test_rolled_timers_are_spread_over_slots(wheel_shard):
    shard = wheel_shard
    shard.run(START)
    shard.add(*[(START + 100) * 1000] * 64)
    shard.step(START)
    wheel = shard.engines[0]._store._wheel
    used = [t for t in range(START, START + W) if wheel.next_pending(t, t + 1) is not None]
    assert len(used) == W // 4


def test_segments_go_when_all_their_slots_are_behind(wheel_shard):
    shard = wheel_shard
    shard.run(START)
    for tick in range(START, START + 60):
        shard.add(*[(tick + 3) * 1000] * 5)
        shard.run(tick)
        shard.check()
    log_directory = shard.directory / "shard-000" / "timer-log"
    assert len(shard.disk.names(log_directory)) <= 5
    shard.reopen()
    shard.run(START + 80)
    assert sorted(shard.handed) == shard.expect(START + 80)


@pytest.mark.parametrize("name", ["wheel", "cursor.0", "timer-log/00000000000000000000"])
def test_a_damaged_shard_is_built_again(wheel_shard, name):
    shard = wheel_shard
    shard.run(START)
    shard.add(*[(START + n) * 1000 for n in range(2, 30)])
    shard.run(START + 3)
    shard.close()
    for damaged in {name, name.replace(".0", ".1")}:
        path = shard.directory / "shard-000" / damaged
        path.write_bytes(b"x" * 77)
    shard.open(start_seq=0)
    shard.run(START + 40)
    assert {seq for _, seq in shard.handed} == set(range(28))


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_wheel_that_is_gone_or_empty_is_built_again(wheel_shard, is_gone):
    shard = wheel_shard
    shard.run(START)
    shard.add(*[(START + 20 + n) * 1000 for n in range(200)])
    shard.run(START + 3)
    assert shard.engines[0].cursor.mark.wheel_synced
    shard.close()
    path = shard.directory / "shard-000" / "wheel"
    path.write_bytes(b"")
    if is_gone:
        path.unlink()
        shard.disk = FaultyDisk(1)
    shard.open(start_seq=0)
    shard.run(START + 300)
    assert {seq for _, seq in shard.handed} == set(range(200))


@pytest.mark.parametrize("act", ["log write", "log sync", "slots", "ready", "cursor"])
def test_a_step_that_fails_is_done_again_by_the_same_engine(wheel_shard, act, monkeypatch):
    shard = wheel_shard
    shard.run(START)
    shard.add(*[(START + n % 12) * 1000 for n in range(40)])
    shard.run(START + 1)
    shard.add(*[(START + n % 12) * 1000 for n in range(40)])
    engine = shard.engines[0]
    owner, name = {
        "log write": (engine._store._log, "append"),
        "log sync": (engine._store._log, "sync"),
        "slots": (engine._store._wheel, "write"),
        "ready": (engine.ready, "write"),
        "cursor": (engine._checkpoint, "save"),
    }[act]
    done = getattr(owner, name)

    def full(*given, **named):
        if act == "slots":
            done(*given, **named)
        if act == "log write":
            done(given[0][: len(given[0]) // 2])
        raise DiskFullError("no space")

    before = engine.cursor
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, full)
        with pytest.raises(DiskFullError):
            shard.step(START + 6)
    assert engine.cursor == before
    WatchedEngine.rebuild_count = 0
    shard.collect()
    shard.run(START + 40)
    assert {seq for _, seq in shard.handed} == set(range(80))
    assert WatchedEngine.rebuild_count == 0


def test_slots_that_a_power_cut_took_are_written_again(tmp_path):
    settings = TimerSettings(1000, 1, 32, 8, 400, wheel_sync_bytes=52 * 25)
    shard = ShardHarness(tmp_path / "timer", settings).open()
    shard.run(START)
    shard.add(*[(START + 2 + n % 5) * 1000 for n in range(30)])
    shard.run(START)
    assert shard.engines[0].cursor.mark.wheel_synced > 0
    wheel = shard.directory / "shard-000" / "wheel"
    synced = wheel.read_bytes()
    shard.add(*[(START + 2 + n % 6) * 1000 for n in range(20)])
    shard.run(START + 3)
    shard.close()
    wheel.write_bytes(synced)
    WatchedEngine.rebuild_count = 0
    shard.open()
    shard.check()
    shard.run(START + 20)
    assert sorted(shard.handed) == shard.expect(START + 20)
    assert WatchedEngine.rebuild_count == 0
    shard.close()


def test_slots_are_set_back_durably_before_their_units_are_cut(tmp_path):
    disk = FaultyDisk()
    shard = ShardHarness(tmp_path / "timer", SMALL, disk).open()
    shard.run(START)
    shard.add(*[(START + 3) * 1000] * 3)
    crash_at = _operation_that_writes_the_cursor(tmp_path / "rehearsal")
    disk.arm(FaultPlan(crash_at=crash_at, count_writes=True))
    with pytest.raises(SimulatedCrash):
        shard.step(START + 1)
    shard.disk = disk.crash(power_cut=False)
    shard.engines = []
    shard.open()
    trace = list(shard.disk.trace)
    acts = [act.split()[1:3] for act in trace[trace.index("kill") + 1 :]]
    cut = next(at for at, act in enumerate(acts) if act[-1].startswith("timer-log/"))
    assert ["scatter", "shard-000/wheel"] in acts[:cut]
    assert ["sync", "shard-000/wheel"] in acts[acts.index(["scatter", "shard-000/wheel"]) : cut]
    shard.close()
    shard.check()
    shard.disk.close()


def _operation_that_writes_the_cursor(directory):
    """Which operation of a step like the one above that is."""
    with FaultyDisk() as disk:
        shard = ShardHarness(directory, SMALL, disk).open()
        shard.run(START)
        shard.add(*[(START + 3) * 1000] * 3)
        disk.arm(FaultPlan(count_writes=True))
        shard.step(START + 1)
        acts = [act.split() for act in disk.trace]
        return int([act[0] for act in acts if act[1] == "write" and "shard-000/cursor" in act[2]][-1])


def test_check_finds_a_slot_that_leads_astray(wheel_shard, tmp_path):
    shard = wheel_shard
    shard.run(START)
    shard.add(*[(START + 3) * 1000] * 3, (START + 4) * 1000)
    shard.run(START)
    path = shard.directory / "shard-000" / "wheel"
    whole = path.read_bytes()
    offset = (START + 3) % SMALL.slots * 32
    for at in (0, 8, 16, 24):
        damaged = bytearray(whole)
        damaged[offset + at : offset + at + 4] = b"\x00\x00\x00\x00"
        damaged[offset + at + 4 : offset + at + 8] = b"\x00\x00\x00\x00"
        path.write_bytes(damaged)
        if damaged != whole:
            assert check_timer(shard.disk, shard.directory), f"nothing found at byte {at}"
    path.write_bytes(whole)
