"""Settings: read once, checked once, frozen. Every setting has its unit in its name.

The command line's flags and the keys of a TOML file carry the same names (`--max-delay 30d`, `max_delay =
"30d"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemill.core.arguments import NO_LIMIT, require_whole
from tidemill.core.durations import parse_duration_ms
from tidemill.core.errors import RequestError
from tidemill.core.levels import DEFAULT_LEVELS, level_delays_ms
from tidemill.core.limits import (
    BODY_BYTES_MAX,
    DAY_MS,
    KIB,
    MAX_DELAY_MS,
    MIB,
    QUEUES_PER_TOPIC_DEFAULT,
    QUEUES_PER_TOPIC_MAX,
)

TICKS_MS = (100, 200, 500, 1000)
WHEEL_SLOTS = 1_209_600
WHEEL_SLOTS_MAX = 1 << 25  # a wheel of 1 GiB for each shard
ROLL_WINDOW_SLOTS = 172_800
# A TimerLog unit keeps its delay in a signed 32-bit number of milliseconds.
ROLL_WINDOW_MS_MAX = (1 << 31) - 1
TIMER_STORES = ("wheel", "rocksdb")
_RANGES = {
    "lead_ms": (1, NO_LIMIT),
    "shards": (1, 256),
    "commits_in_flight": (1, 64),
    "retention_ms": (1, NO_LIMIT),
    "max_delay_ms": (1, NO_LIMIT),
    "body_bytes_max": (1, BODY_BYTES_MAX),
    "in_flight_bytes_max": (1, NO_LIMIT),
    "due_per_tick_max": (0, NO_LIMIT),
    "wheel_slots": (1, WHEEL_SLOTS_MAX),
    "roll_window_ms": (0, ROLL_WINDOW_MS_MAX),
    "queues_per_topic": (1, QUEUES_PER_TOPIC_MAX),
    "segment_bytes": (4 * KIB, NO_LIMIT),
}

# What those are called in a flag and a file that are milliseconds here.
_FLAGS = {
    "lead_ms": "lead (lead_ms)",
    "retention_ms": "retention (retention_ms)",
    "wheel_slots": "wheel-slots (wheel_slots)",
    "roll_window_ms": "roll-window (roll_window_ms)",
    "max_delay_ms": "max-delay (max_delay_ms)",
    "due_per_tick_max": "due-per-tick-max (due_per_tick_max)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How a broker behaves. All may change between two runs on the same directory."""

    lead_ms: int = 30_000  # how far the pipeline works ahead of the clock
    tick_ms: int = 1_000  # width of a wheel slot; a change rebuilds the timer
    shards: int = 2  # a change rebuilds the timer
    wheel_slots: int = (
        WHEEL_SLOTS  # slots of the wheel, 32 bytes each in every shard; a change rebuilds the timer
    )
    roll_window_ms: int = 0  # how far ahead the wheel reaches; 0: 172,800 slots; a change rebuilds the timer
    timer_store: str = "wheel"  # what keeps the timers: "wheel" or "rocksdb"; a change rebuilds the timer
    durability: str = "sync"  # "sync": answers leave after the sync; "async": after the write
    commits_in_flight: int = 4  # syncs that may overlap
    retention_ms: int = 3 * DAY_MS  # how long delivered messages are kept
    max_delay_ms: int = MAX_DELAY_MS  # the one limit for all delays
    body_bytes_max: int = BODY_BYTES_MAX
    in_flight_bytes_max: int = 256 * MIB  # bodies of sends in flight; over it sends are refused
    due_per_tick_max: int = 0  # messages of one topic that may fall due in one tick; 0: no limit
    levels: str = ""  # delay of each level; empty: as the directory was last opened with
    queues_per_topic: int = QUEUES_PER_TOPIC_DEFAULT  # for topics made on first send
    segment_bytes: int = 128 * MIB

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            require_whole(_FLAGS.get(name, name), getattr(self, name), low, high)
        require_tick(self.tick_ms)
        if self.lead_ms < 2 * self.tick_ms:
            raise RequestError(
                f"lead {self.lead_ms} ms is too short; use at least two ticks ({2 * self.tick_ms} ms)"
            )
        self._check_roll_window()
        require_wheel(self.tick_ms, self.wheel_slots, self.roll_window_slots)
        if self.durability not in ("sync", "async"):
            raise RequestError(f"durability {self.durability!r} is unknown; use sync or async")
        if self.timer_store not in TIMER_STORES:
            raise RequestError(f"timer-store {self.timer_store!r} is unknown; use wheel or rocksdb")
        _ = self.level_delays_ms

    def _check_roll_window(self) -> None:
        """One that was set is a whole number of ticks, and no shorter than the lead."""
        window_ms = self.roll_window_ms
        if window_ms % self.tick_ms:
            raise RequestError(
                f"roll-window {window_ms} ms is not a whole number of ticks of {self.tick_ms} ms; "
                "use a multiple of the tick"
            )
        if window_ms and window_ms < self.lead_ms:
            raise RequestError(
                f"roll-window {window_ms} ms is shorter than the lead; use at least {self.lead_ms} ms"
            )

    @property
    def roll_window_slots(self) -> int:
        """How many slots ahead a message is placed at most."""
        return self.roll_window_ms // self.tick_ms or ROLL_WINDOW_SLOTS

    @property
    def level_delays_ms(self) -> tuple[int, ...]:
        """The delay of level 1, 2, …"""
        return level_delays_ms(self.levels or DEFAULT_LEVELS)


def require_tick(tick_ms: int) -> None:
    if tick_ms not in TICKS_MS:
        raise RequestError(f"tick {tick_ms} ms is not possible; use one of 100, 200, 500, 1000 ms")


def require_wheel(tick_ms: int, slots: int, window_slots: int) -> None:
    """Refuse a roll window that is too long for a timer, or that the wheel has too few slots for."""
    if window_slots * tick_ms > ROLL_WINDOW_MS_MAX:
        raise RequestError(
            f"roll-window {window_slots * tick_ms} ms is too long; use at most {ROLL_WINDOW_MS_MAX} ms"
        )
    if slots < window_slots + 3:
        raise RequestError(
            f"wheel-slots {slots} is too few for a roll window of {window_slots} slots of {tick_ms} ms; "
            f"use at least {window_slots + 3}, or a shorter roll-window"
        )


_DURATIONS = {
    "lead": "lead_ms",
    "tick": "tick_ms",
    "roll_window": "roll_window_ms",
    "retention": "retention_ms",
    "max_delay": "max_delay_ms",
}


def setting_names() -> set[str]:
    """What settings are called in flags and files."""
    return {*_DURATIONS, *BrokerSettings.__dataclass_fields__} - set(_DURATIONS.values())


def settings_from(values: Mapping[str, Any], start: BrokerSettings | None = None) -> BrokerSettings:
    """Settings from flags or a file, durations as text; unknown names are refused."""
    known = BrokerSettings.__dataclass_fields__
    fields: dict[str, Any] = {}
    for name, value in values.items():
        plain = name.replace("-", "_")
        if plain in _DURATIONS:
            fields[_DURATIONS[plain]] = _span_ms(plain, value) if isinstance(value, str) else value
        elif plain in known:
            fields[plain] = value
        else:
            raise RequestError(f"unknown setting {name!r}; known are {', '.join(sorted(setting_names()))}")
    return replace(start or BrokerSettings(), **fields)


def _span_ms(name: str, text: str) -> int:
    try:
        return parse_duration_ms(text)
    except RequestError as error:
        raise RequestError(f"{name.replace('_', '-')} is {error}") from None
