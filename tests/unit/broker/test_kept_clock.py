"""A simulated clock that a restart does not set back, and an advance that does not go back."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from helpers.small_broker import START_MS
from tidemill.broker.backup import back_up
from tidemill.broker.broker import Broker
from tidemill.broker.control.simulated_time import KeptClock
from tidemill.core.errors import CorruptionError, RequestError
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Draft
from tidemill.log.disk import RealDisk
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash

_GOLDEN = Path(__file__).parents[2] / "golden" / "clock-1.bin"


def _clock(directory: Path, now_ms: int = START_MS) -> KeptClock:
    return KeptClock(RealDisk(), directory, now_ms)


def test_it_begins_with_the_given_time_and_goes_on_where_it_was(tmp_path):
    clock = _clock(tmp_path)
    assert clock.now_ms() == START_MS and not list(tmp_path.iterdir())
    clock.keep()
    assert _clock(tmp_path, START_MS + 5_000).now_ms() == START_MS
    clock.advance_to(START_MS + DAY_MS)
    clock.advance_to(START_MS)  # an earlier time is ignored
    assert _clock(tmp_path).now_ms() == START_MS + DAY_MS


@pytest.mark.parametrize("power_cut", [False, True])
def test_no_crash_sets_it_back(tmp_path, power_cut):
    """Killed at any operation, not before what it showed; after a power cut, not before what was kept."""
    for crash_at in count(1):
        directory = tmp_path / f"{power_cut}-{crash_at}"
        directory.mkdir()
        shown = kept = 0
        with FaultyDisk(crash_at, plan=FaultPlan(crash_at=crash_at, count_writes=True)) as disk:
            try:
                clock = KeptClock(disk, directory, START_MS)
                for _ in range(3):
                    clock.keep()
                    shown = kept = clock.now_ms()
                    for _ in range(2):
                        clock.advance_to(clock.now_ms() + 1_000)
                        shown = clock.now_ms()
                break
            except SimulatedCrash:
                pass
            left = disk.crash(power_cut=power_cut)
            again = KeptClock(left, directory, 0).now_ms()
            assert again >= (kept if power_cut else shown)
            left.close()
    assert crash_at > 12


def test_damage_to_both_files_is_refused_and_to_one_is_not(tmp_path):
    clock = _clock(tmp_path)
    clock.advance_to(START_MS + 1_000)
    clock.keep()
    first, second = sorted(tmp_path.glob("clock.*"))
    first.write_bytes(b"no checkpoint")
    assert _clock(tmp_path).now_ms() == START_MS + 1_000
    second.write_bytes(b"no checkpoint")
    with pytest.raises(CorruptionError, match=r"clock\.0 and \.1 are damaged"):
        _clock(tmp_path)


def test_the_format_does_not_change(tmp_path):
    clock = _clock(tmp_path)
    clock.keep()
    found = (tmp_path / "clock.1").read_bytes()
    assert found == _GOLDEN.read_bytes()
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "clock.1").write_bytes(_GOLDEN.read_bytes())
    assert _clock(tmp_path / "golden", 0).now_ms() == START_MS


def test_a_broker_keeps_its_time_and_so_does_its_backup(tmp_path):
    directory = tmp_path / "data"
    with Broker(directory, clock=_clock(directory), has_threads=False) as broker:
        broker.send([Draft("t", b"x", delay_ms=60_000)])
        broker.advance_to(START_MS + 30_000)
        back_up(broker, tmp_path / "copy")
    for place in (directory, tmp_path / "copy"):
        clock = _clock(place, START_MS + DAY_MS)
        assert clock.now_ms() == START_MS + 30_000
        with Broker(place, clock=clock, has_threads=False) as broker:
            assert broker.status().pending == 1
            broker.advance_to(START_MS + 60_000)
            assert broker.status().released == 1


def test_an_advance_into_the_past_is_refused_with_both_times(small):
    with pytest.raises(
        RequestError,
        match=r"cannot be moved back to 2027-01-15T07:59:59\.999Z: it is 2027-01-15T08:00:00\.000Z",
    ):
        small.broker.advance_to(START_MS - 1)
    small.broker.advance_to(START_MS)
    assert small.clock.now_ms() == START_MS


def test_the_clock_is_kept_before_an_advance_is_answered(small, monkeypatch):
    kept: list[int] = []
    monkeypatch.setattr(small.clock, "keep", lambda: kept.append(small.clock.now_ms()), raising=True)
    small.advance(5_000)
    assert kept == [START_MS + 5_000]
