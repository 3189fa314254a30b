"""The table of delay levels: `1s 5s 10s …`, level 1 first.

Owns how the table is written (whole numbers with s, m, h or d, separated by blanks, as many as wanted) and
which delay a level means. Level 0 is none, a level above the highest is the highest, a negative one is
refused. Pure; the same text always means the same delays.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tidemill.core.errors import IllegalLevelError, RequestError
from tidemill.core.limits import MAX_DELAY_MS

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
# An entry keeps the level in one byte.
LEVEL_COUNT_MAX = (1 << 8) - 1
# The half of a transaction keeps the level that was asked for in two; it is clamped at the commit.
LEVEL_ASKED_MAX = (1 << 16) - 1

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([1-9]\d{0,11})([smhd])")


@lru_cache(64)
def level_delays_ms(table: str) -> tuple[int, ...]:
    """The delay of level 1, 2, …"""
    words = table.split()
    if not 1 <= len(words) <= LEVEL_COUNT_MAX:
        raise RequestError(f"{len(words)} levels were given; give 1 to {LEVEL_COUNT_MAX}, such as '1s 5s 1m'")
    return tuple(_delay_ms(word, number) for number, word in enumerate(words, 1))


def _delay_ms(word: str, level: int) -> int:
    found = _LEVEL.fullmatch(word)
    if found is None:
        raise RequestError(
            f"level {level} is {word!r}; write a whole number above 0 with s, m, h or d, such as 30s or 2h"
        )
    delay_ms = int(found[1]) * _UNIT_MS[found[2]]
    if delay_ms > MAX_DELAY_MS:
        raise RequestError(
            f"level {level} is {word!r}; the longest possible is {MAX_DELAY_MS // 86_400_000}d"
        )
    return delay_ms


def clamped_level(level: int, delays_ms: tuple[int, ...]) -> tuple[int, str]:
    """The level that is used for the one asked for, and a note where it is another."""
    if level < 0:
        raise IllegalLevelError(f"level {level} is negative; use 1 to {len(delays_ms)}, or 0 for none")
    highest = len(delays_ms)
    if level > highest:
        return highest, f"level {level} is above the highest, {highest} was used"
    return level, ""
