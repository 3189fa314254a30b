"""ManualClock: time passes by hand, and the wall clock can be set wrong."""

from __future__ import annotations

import pytest

from tidemill.testing import ManualClock


def test_advance_moves_both_clocks() -> None:
    clock = ManualClock(1_000)
    assert clock.advance(250) == 1_250
    assert (clock.now_ms(), clock.boot_ms()) == (1_250, 250)


def test_a_leap_moves_only_the_wall_clock() -> None:
    clock = ManualClock(1_000_000)
    clock.advance(10)
    assert clock.leap_ms(-500_000) == 500_010
    assert clock.leap_ms(3) == 500_013
    assert clock.boot_ms() == 10


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(AssertionError, match="leap_ms"):
        ManualClock(0).advance(-1)
