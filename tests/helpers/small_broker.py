"""A broker small enough that a few dozen messages fill segments, chunks, runs and the wheel; for tests.

Nothing runs by itself: time is a `ManualClock`, the disk a `FaultyDisk` over real files. `check` derives
everything again from the log and must find nothing; every fixture runs it at the end.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from tidemill.broker.broker import Broker, Sizes
from tidemill.core.config import BrokerSettings
from tidemill.core.limits import KIB
from tidemill.core.model import Draft, Via
from tidemill.release.releaser import RELEASE_ROWS_MAX
from tidemill.store.damage import Derived
from tidemill.store.indexes import IndexSizes
from tidemill.store.message_store import StoreSettings
from tidemill.testing import FaultyDisk, ManualClock
from tidemill.timer.settings import StoreKind, TimerSettings

START_MS = 1_800_000_000_000
RETENTION_MS = 3_600_000

STORE = StoreSettings(
    segment_bytes=16 * KIB,
    consumer_segment_bytes=4 * KIB,
    ballast_bytes=64 * KIB,
    retention_ms=RETENTION_MS,
    sizes=IndexSizes(entry_chunk_rows=64, queue_chunk_rows=32, find_memory_pairs_max=64),
)
TIMER = TimerSettings(
    tick_ms=1000, shards=2, slots=4096, roll_window_slots=1024, segment_bytes=4096, wheel_sync_bytes=4096
)


@dataclass(frozen=True)
class InTopic:
    """A message as it lies in a queue."""

    queue_id: int
    offset: int
    id: str
    body: bytes
    deliver_at_ms: int
    released_at_ms: int
    via: Via


class SmallBroker:
    """One data directory, opened, killed and opened again."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: ManualClock | None = None,
        timer: TimerSettings = TIMER,
        store: StoreSettings = STORE,
        release_rows_max: int = RELEASE_ROWS_MAX,
        disk: FaultyDisk | None = None,
        **settings,
    ) -> None:
        self.directory = directory
        self.timer_settings = timer
        self.release_rows_max = release_rows_max
        self.is_timer_damaged = False  # a test that damages the timer's files says so
        self.clock = clock or ManualClock(START_MS)
        self.disk = disk or FaultyDisk(1)
        self.settings = BrokerSettings(**{"retention_ms": RETENTION_MS, "queues_per_topic": 2, **settings})
        self.store_settings = replace(
            store,
            retention_ms=self.settings.retention_ms,
            is_sync=self.settings.durability == "sync",
            commits_in_flight=self.settings.commits_in_flight,
        )
        self._scratch = count()
        self.broker = self.open()

    def open(self) -> Broker:
        timer = replace(
            self.timer_settings,
            tick_ms=self.settings.tick_ms,
            shards=self.settings.shards,
            store=StoreKind(self.settings.timer_store),
        )
        if self.settings.roll_window_ms:  # a test that changes the wheel's shape; it is small otherwise
            shape = {"slots": self.settings.wheel_slots, "roll_window_slots": self.settings.roll_window_slots}
            timer = replace(timer, **shape)
        self.broker = Broker(
            self.directory,
            self.settings,
            clock=self.clock,
            disk=self.disk,
            has_threads=False,
            sizes=Sizes(store=self.store_settings, timer=timer, release_rows_max=self.release_rows_max),
        )
        return self.broker

    def close(self) -> None:
        self.broker.close()

    def reopen(self, **settings) -> Broker:
        """Close in order and open again, perhaps with other settings."""
        self.close()
        self.settings = replace(self.settings, **settings)
        return self.open()

    def kill(self, *, power_cut: bool = False) -> None:
        self.disk = self.disk.crash(power_cut=power_cut)

    def kill_and_open(self, *, power_cut: bool = False) -> Broker:
        self.kill(power_cut=power_cut)
        return self.open()

    def delete(self, name: str) -> None:
        """Remove a derived part of the directory while the broker is down."""
        shutil.rmtree(self.directory / name)
        self.disk = FaultyDisk(1)

    # -- what is in the topics --------------------------------------------------------------------

    def in_topic(self, topic: str) -> list[InTopic]:
        """Everything in a topic's queues that has not expired, by queue and offset."""
        found = []
        for queue_id in range(self.broker.topics.require(topic).queue_count):
            found += [
                InTopic(
                    queue_id,
                    queued.offset,
                    queued.message.id,
                    queued.message.body,
                    queued.message.deliver_at_ms,
                    queued.released_at_ms,
                    queued.via,
                )
                for queued in self.broker.views.read(topic, queue_id, 0, 1 << 40)
            ]
        return found

    def bodies(self, topic: str) -> list[bytes]:
        """Bodies in a topic in order of release."""
        rows = sorted(self.in_topic(topic), key=lambda m: (m.released_at_ms, m.queue_id, m.offset))
        return [row.body for row in rows]

    def advance(self, ms: int) -> None:
        self.broker.advance_to(self.clock.now_ms() + ms)

    def send(self, topic: str, body: bytes = b"x", **fields):
        """One message; its receipt."""
        return self.broker.send([Draft(topic, body, **fields)])[0]

    def fill_segment(self, topic: str = "filler") -> None:
        """Untimed messages until the log has begun a new segment."""
        before = len(self.broker.store.log.segment_starts())
        while len(self.broker.store.log.segment_starts()) == before:
            self.send(topic, bytes(1000))

    @property
    def log_end(self) -> int:
        return self.broker.store.log.written_end

    def check(self) -> None:
        """All holds; nothing was forgotten or damaged in the timer, but for what the test did."""
        scratch = self.directory.parent / f"scratch-{next(self._scratch)}"
        findings = self.broker.check(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        assert not findings, findings
        if not self.is_timer_damaged:
            repaired = self.broker.store.repairs.counts()[Derived.TIMER]
            assert (self.broker.status().swept, repaired) == (0, 0)

    def state(self) -> dict[str, object]:
        """Everything that must be the same after opening again, in plain values."""
        indexes, consumers = self.broker.store.indexes, self.broker.store.consumers
        ledger = indexes.ledger
        pending = self.broker.views.pending(limit=10_000)
        return {
            "next_seq": ledger.next_seq,
            "pending": [(p.seq, p.topic, p.id, p.keys, p.tag, p.deliver_at_ms) for p in pending],
            "base": indexes.base(),
            "forecast": self.broker.views.forecast(horizon_ms=86_400_000),
            "topics": self.broker.views.topics(),
            "queues": {topic.name: self.in_topic(topic.name) for topic in indexes.topics},
            "consumers": consumers.state.as_dict(),
            "halves": dict(indexes.open_transactions),
        }
