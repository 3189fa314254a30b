"""The retry rule of a group: how long a message rests between a failed attempt and the next one.

Owns the group's table of pauses and the one function that reads it; whatever path a failure comes by (push
consumer, worker, HTTP, send-back, settings announced to RocketMQ's clients) asks here, so a group waits the
same everywhere. The table is the group's own (`groups set --backoff`); without one it is RocketMQ's: the
delay levels from the third on, `10s 30s 1m 2m …`, so a message that failed for the n-th time waits on level
n + 2. Past its end the last entry repeats. When no attempt is left is `retries.py`'s. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tidemill.core.levels import level_delays_ms
from tidemill.store.consumers.consumer_state import Group

_FIRST_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Pause:
    """One entry of a table."""

    ms: int
    level: int = 0  # which delay level it is; 0: none, it comes from a table of the group's own


@lru_cache(64)
def _table(backoff: str, levels_ms: tuple[int, ...]) -> tuple[Pause, ...]:
    if backoff:
        return tuple(Pause(ms) for ms in level_delays_ms(backoff))
    first = min(_FIRST_LEVEL, len(levels_ms))
    return tuple(Pause(levels_ms[level - 1], level) for level in range(first, len(levels_ms) + 1))


def pauses_of(group: Group, levels_ms: tuple[int, ...]) -> tuple[Pause, ...]:
    """The table of a group: the pause after the first failed attempt, the second …"""
    return _table(group.backoff, levels_ms)


def pause_after(group: Group, attempt: int, levels_ms: tuple[int, ...]) -> Pause:
    """How long a message rests that failed on this attempt, the first being 1."""
    table = pauses_of(group, levels_ms)
    return table[min(max(attempt, 1), len(table)) - 1]
