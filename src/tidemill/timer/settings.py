"""What a timer directory is made for, and how far one step may go.

Owns the numbers that shape the timer files (`TimerSettings`: written into each shard's header, a change
rebuilds the shard) and the bounds of one step (`StepLimits`: never written).

Invariant: the roll window fits the ring with slots to spare, so a step can always move on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemill.core.config import ROLL_WINDOW_SLOTS, WHEEL_SLOTS, BrokerSettings, require_tick, require_wheel
from tidemill.core.errors import RequestError
from tidemill.core.limits import MIB

TIMER_LOG_SEGMENT_BYTES = 100 * MIB

_SHARDS_MAX = 256
_SEGMENT_BYTES_MIN = 128


class StoreKind(StrEnum):
    """How a shard keeps its timers."""

    WHEEL = "wheel"
    ROCKSDB = "rocksdb"


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """The shape of the timer files. All but `wheel_sync_bytes` are part of the shard's header.

    RocksDB has neither slots nor segments: it heeds only tick and shards.
    """

    tick_ms: int = 1000
    shards: int = 2
    slots: int = WHEEL_SLOTS
    roll_window_slots: int = ROLL_WINDOW_SLOTS
    segment_bytes: int = TIMER_LOG_SEGMENT_BYTES
    # How much TimerLog may be written before the wheel is synced: what opening applies again at most.
    wheel_sync_bytes: int = 16 * MIB
    store: StoreKind = StoreKind.WHEEL

    @classmethod
    def of(cls, settings: BrokerSettings) -> TimerSettings:
        """What a broker's settings ask for."""
        return cls(
            tick_ms=settings.tick_ms,
            shards=settings.shards,
            slots=settings.wheel_slots,
            roll_window_slots=settings.roll_window_slots,
            store=StoreKind(settings.timer_store),
        )

    def __post_init__(self) -> None:
        require_tick(self.tick_ms)
        if not 1 <= self.shards <= _SHARDS_MAX:
            raise RequestError(f"{self.shards} shards are not possible; use 1 to {_SHARDS_MAX}")
        if self.roll_window_slots < 1:
            raise RequestError(
                f"a roll window of {self.roll_window_slots} slots is not possible; use at least 1"
            )
        require_wheel(self.tick_ms, self.slots, self.roll_window_slots)
        if self.segment_bytes < _SEGMENT_BYTES_MIN:
            raise RequestError(f"a TimerLog segment needs at least {_SEGMENT_BYTES_MIN} bytes")


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How much one step may take on. A step always moves on by at least one slot or one row."""

    rows_max: int = 1 << 20
    due_max: int = 1 << 20
    ticks_max: int | None = None

    def __post_init__(self) -> None:
        assert self.rows_max > 0
        assert self.due_max > 0
        assert self.ticks_max is None or self.ticks_max > 0
