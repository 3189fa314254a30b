"""How a simulated broker is made: everything small, so that borders are met all the time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tidemill.broker.broker import Broker, Sizes
from tidemill.core.config import TIMER_STORES, BrokerSettings
from tidemill.release.releaser import RELEASE_ROWS_MAX
from tidemill.store.indexes import IndexSizes
from tidemill.store.message_store import StoreSettings
from tidemill.timer.settings import StepLimits, StoreKind, TimerSettings

if TYPE_CHECKING:
    from tidemill.testing import FaultyDisk, ManualClock

BALLAST_BYTES = 1 << 20
_ROLL_WINDOW_MS = 300_000
_UNIT_BYTES = 52


@dataclass
class Shape:
    """The settings of one run. What `change` sets may differ from life to life, the rest stays."""

    random: Random

    def __post_init__(self) -> None:
        choice = self.random.choice
        self.is_sync = self.random.random() < 0.85
        self.retention_ms = choice((150_000, 400_000, 86_400_000))
        self.segment_bytes = choice((4_096, 8_192, 32_768))
        self.index_sizes = IndexSizes(
            entry_chunk_rows=choice((4, 16, 64)),
            queue_chunk_rows=choice((2, 8)),
            find_memory_pairs_max=choice((4, 32)),
        )
        self.move_count_max = choice((1, 2, 1_024))  # messages that move in one frame
        self.change_weight = choice((1, 1, 8))  # some users change their mind all the time
        self.limits = StepLimits(rows_max=choice((3, 50)), due_max=choice((2, 50)))
        self.change()

    def change(self) -> None:
        """What an operator may set anew between two lives."""
        self.tick_ms = self.random.choice((200, 500, 1_000))
        self.shards = self.random.choice((1, 2, 3))
        self.lead_ms = self.random.choice((2_000, 5_000, 12_000))
        self.levels = self.random.choice(("1s 5s 10s 30s 1m 2m", "5s 1s 1m", "3s", "1m 1m 4s 10m"))
        self.timer_store = self.random.choice(TIMER_STORES)
        self.commits_in_flight = self.random.choice((1, 2, 4, 8))
        self.due_per_tick_max = self.random.choice((0, 0, 1, 1, 3))
        self.release_rows_max = self.random.choice((1, 3, RELEASE_ROWS_MAX))

    def open(self, directory: Path, clock: ManualClock, disk: FaultyDisk) -> Broker:
        window = _ROLL_WINDOW_MS // self.tick_ms
        settings = BrokerSettings(
            lead_ms=self.lead_ms,
            tick_ms=self.tick_ms,
            shards=self.shards,
            timer_store=self.timer_store,
            retention_ms=self.retention_ms,
            durability="sync" if self.is_sync else "async",
            queues_per_topic=2,
            levels=self.levels,
            commits_in_flight=self.commits_in_flight,
            due_per_tick_max=self.due_per_tick_max,
        )
        sizes = Sizes(
            store=StoreSettings(
                segment_bytes=self.segment_bytes,
                consumer_segment_bytes=4_096,
                ballast_bytes=BALLAST_BYTES,
                retention_ms=self.retention_ms,
                is_sync=self.is_sync,
                commits_in_flight=self.commits_in_flight,
                sizes=self.index_sizes,
            ),
            timer=TimerSettings(
                tick_ms=self.tick_ms,
                shards=self.shards,
                slots=2 * window,
                roll_window_slots=window,
                segment_bytes=9 * _UNIT_BYTES,
                wheel_sync_bytes=20 * _UNIT_BYTES,
                store=StoreKind(self.timer_store),
            ),
            limits=self.limits,
            release_rows_max=self.release_rows_max,
        )
        return Broker(directory, settings, clock=clock, disk=disk, has_threads=False, sizes=sizes)
