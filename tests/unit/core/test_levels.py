"""The table of delay levels."""

from __future__ import annotations

import pytest

from tidemill.core.config import BrokerSettings
from tidemill.core.errors import IllegalLevelError, RequestError
from tidemill.core.levels import DEFAULT_LEVELS, LEVEL_COUNT_MAX, clamped_level, level_delays_ms


def test_the_default_table_is_that_of_rocketmq():
    delays = level_delays_ms(DEFAULT_LEVELS)
    assert len(delays) == 18
    assert delays[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert delays[-3:] == (1_800_000, 3_600_000, 7_200_000)
    assert BrokerSettings().level_delays_ms == delays


def test_a_table_may_have_any_count_and_all_four_units():
    assert level_delays_ms("7s") == (7_000,)
    assert level_delays_ms(" 2d  1h 1m\t1s ") == (172_800_000, 3_600_000, 60_000, 1_000)
    assert len(level_delays_ms("1s " * LEVEL_COUNT_MAX)) == LEVEL_COUNT_MAX == 255
    with pytest.raises(RequestError, match="256 levels were given; give 1 to 255"):
        level_delays_ms("1s " * 256)


@pytest.mark.parametrize(
    "table", ["", "1", "s", "1x", "0s", "-1s", "1.5s", "1s,5s", "500ms", "1s 5", "9999d"]
)
def test_a_table_that_cannot_be_read_is_refused_with_what_to_write(table):
    with pytest.raises(RequestError, match=r"levels were given|write a whole number|longest possible"):
        level_delays_ms(table)
    if table:
        with pytest.raises(RequestError):
            BrokerSettings(levels=table)


def test_levels_are_clamped_above_and_refused_below():
    delays = level_delays_ms("1s 5s")
    assert clamped_level(2, delays) == (2, "")
    assert clamped_level(3, delays) == (2, "level 3 is above the highest, 2 was used")
    with pytest.raises(IllegalLevelError, match="-1 is negative; use 1 to 2"):
        clamped_level(-1, delays)
