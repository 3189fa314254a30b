"""A small shard with its entries and an oracle beside it, for the timer's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.log.disk import Disk, RealDisk
from tidemill.store.formats.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.row_check import salts_of, seal
from tidemill.testing.heap_timer import HeapTimer
from tidemill.timer.check import check_timer
from tidemill.timer.engine import ShardEngine, StepOutcome, StepTarget
from tidemill.timer.ready_format import Runner
from tidemill.timer.rocksdb.rocks_check import all_keys
from tidemill.timer.rocksdb.rocks_format import KEY_BYTES, TIMER_KEY, first_key_at
from tidemill.timer.settings import StepLimits, StoreKind, TimerSettings
from tidemill.timer.target import raise_epoch

NOT_FAR = FLAG_NEAR | FLAG_LEVEL
# A ring so small that a few dozen ticks wrap it, and segments of seven units.
SMALL = TimerSettings(
    tick_ms=1000, shards=1, slots=32, roll_window_slots=8, segment_bytes=400, wheel_sync_bytes=600
)
STORES = tuple(StoreKind)


class EntryList:
    """An `EntrySource` in memory that refuses what a real one could not give."""

    def __init__(self) -> None:
        self.head_seq = 0
        self._rows = np.empty(0, ENTRY)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, deliver_at_ms: list[int], *, flags: int = 0, stored_at_ms: int = 0) -> list[int]:
        """Append entries; their seqs."""
        rows = np.zeros(len(deliver_at_ms), ENTRY)
        rows["deliver_at_ms"] = deliver_at_ms
        rows["flags"] = flags
        rows["stored_at_ms"] = stored_at_ms
        first = len(self._rows)
        seqs = np.arange(first, first + len(rows))
        rows["place"] = (seqs.astype(np.uint64) * np.uint64(200)) << np.uint64(16)
        rows["size"] = 100 + seqs % 7
        rows["topic_id"] = seqs % 5
        rows["id_hash"] = seqs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        seal(rows, salts_of(seqs))
        self._rows = np.concatenate((self._rows, rows))
        return seqs.tolist()

    def rows(self, first_seq: int, end_seq: int):
        assert self.head_seq <= first_seq <= end_seq <= len(self._rows)
        return self._rows[first_seq:end_seq]

    def take(self, seqs):
        assert not len(seqs) or (self.head_seq <= seqs.min() and seqs.max() < len(self._rows))
        return self._rows.take(seqs)


class WatchedEngine(ShardEngine):
    """An engine that counts how often it had to begin anew."""

    rebuild_count = 0

    def _rebuild(self) -> None:
        WatchedEngine.rebuild_count += 1
        super()._rebuild()


class ShardHarness:
    """All shards of one directory, stepped by hand; what they hand over is collected."""

    def __init__(self, directory: Path, settings: TimerSettings = SMALL, disk: Disk | None = None) -> None:
        self.directory = directory
        self.settings = settings
        self.disk = disk or RealDisk()
        self.entries = EntryList()
        self.oracle = HeapTimer()
        self.limits = StepLimits()
        self.epoch = 0
        self.engines: list[ShardEngine] = []
        self.handed: list[tuple[int, int]] = []
        self.placements: dict[int, int] = {}  # of each seq that was handed over, as its ready file says
        self.known_ready: set[tuple[int, str]] = set()

    def open(self, start_seq: int = 0) -> ShardHarness:
        self.epoch = raise_epoch(self.disk, self.directory, 0, 0)
        for shard in range(self.settings.shards):
            engine = WatchedEngine(
                self.disk, self.directory, shard, self.settings, self.entries, runner=Runner.EMBEDDED
            )
            self.engines.append(engine)
            engine.open(start_seq)
        return self

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.engines = []

    def reopen(self, start_seq: int = 0) -> None:
        self.close()
        self.open(start_seq)

    def add(self, *deliver_at_ms: int, flags: int = 0) -> list[int]:
        seqs = self.entries.add(list(deliver_at_ms), flags=flags)
        if not flags & NOT_FAR:
            for seq, due_ms in zip(seqs, deliver_at_ms, strict=True):
                self.oracle.add(seq, due_ms)
        return seqs

    def step(self, tick: int, *, seq: int | None = None, shard: int = 0) -> StepOutcome:
        """One bounded step of one shard, without collecting."""
        target = StepTarget(self.epoch, len(self.entries) if seq is None else seq, tick)
        return self.engines[shard].step(target, self.limits)

    def run(self, tick: int, *, steps_max: int = 10_000) -> list[tuple[int, int]]:
        """Step every shard until it has reached `tick`; the rows handed over, sorted."""
        for shard in range(len(self.engines)):
            for _ in range(steps_max):
                if self.step(tick, shard=shard).has_reached:
                    break
            else:
                raise AssertionError(f"shard {shard} does not reach tick {tick}")
        return self.collect()

    def collect(self) -> list[tuple[int, int]]:
        """Rows of ready files not seen before, sorted by (deliver-at, seq)."""
        rows: list[tuple[int, int]] = []
        for engine in self.engines:
            for name in engine.ready.names():
                if (engine.shard, str(name)) in self.known_ready:
                    continue
                self.known_ready.add((engine.shard, str(name)))
                header, ready, placements = engine.ready.read(name)
                assert len(ready), "a ready file without rows"
                assert (ready["deliver_at_ms"] < (header.until_tick + 1) * self.settings.tick_ms).all()
                rows += ready.tolist()
                self.placements.update(zip(ready["seq"].tolist(), placements.tolist(), strict=True))
        self.handed += sorted(rows)
        return sorted(rows)

    def expect(self, tick: int) -> list[tuple[int, int]]:
        """What the oracle hands over for `tick`."""
        return self.oracle.advance(tick * self.settings.tick_ms)

    def check(self) -> None:
        findings = check_timer(self.disk, self.directory)
        assert not findings, findings


def rocks_keys_on_disk(shard: ShardHarness) -> np.ndarray:
    """Every key of the first shard's RocksDB, in order."""
    keys = RealDisk().sorted_keys(shard.directory / "shard-000" / "rocksdb", KEY_BYTES, read_only=True)
    try:
        parts = list(all_keys(keys, first_key_at(0)))
    finally:
        keys.close()
    return np.concatenate(parts) if parts else np.empty(0, TIMER_KEY)
