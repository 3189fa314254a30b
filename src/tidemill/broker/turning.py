"""Who turns the wheel: the broker's side of the timer.

Owns the embedded runner, the target file and what the releaser must know of the shards. The pipeline reads
entries through a reader of its own, never further than what a power cut would leave.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.broker.views import PipelineView
from tidemill.core.config import BrokerSettings
from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.log.row_table import RowTable
from tidemill.release.releaser import FifoSafe, Releaser
from tidemill.store.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR, Entries
from tidemill.store.message_store import MessageStore
from tidemill.timer.embedded_runner import EmbeddedRunner
from tidemill.timer.settings import StepLimits, TimerSettings
from tidemill.timer.target import Target, raise_epoch, write_target

_SAFE_MS_MAX = 1 << 62


class StoreEntries:
    """The store's entries as the timer reads them."""

    def __init__(self, disk: Disk, store: MessageStore) -> None:
        self._store = store
        chunk_rows = store.settings.sizes.entry_chunk_rows
        self._table = RowTable(disk, store.directory / "index" / "entries", ENTRY, chunk_rows, lambda: False)

    @property
    def head_seq(self) -> int:
        return self._store.indexes.ledger.head_seq

    def rows(self, first_seq: int, end_seq: int) -> Entries:
        return self._table.read(first_seq, end_seq)

    def take(self, seqs: I64) -> Entries:
        return self._table.take(seqs)

    def close(self) -> None:
        self._table.close()


class Turning:
    """The embedded runner as a service."""

    def __init__(
        self,
        disk: Disk,
        store: MessageStore,
        settings: BrokerSettings,
        timer_settings: TimerSettings,
        limits: StepLimits,
        now_ms: int,
    ) -> None:
        self._store = store
        self._settings = settings
        self._directory = store.directory / "timer"
        disk.make_dir(self._directory)
        self._disk = disk
        self._entries = StoreEntries(disk, store)
        self._runner = EmbeddedRunner(
            disk, self._directory, timer_settings, self._entries, lead_ms=settings.lead_ms, limits=limits
        )
        epoch = raise_epoch(disk, self._directory, now_ms, store.writer.safe_seq())
        self._runner.open(epoch, store.indexes.ledger.first_pending())
        self._epoch = epoch
        self._handed_over = 0
        self.next_call_ms: int | None = None  # when a step is called for, if nothing new comes

    @property
    def timer_directory(self) -> Path:
        return self._directory

    def step(self, now_ms: int, releaser: Releaser) -> int:
        """Turn the wheel if that is called for; come again soon enough to meet new far messages in time."""
        safe_seq = self._store.writer.safe_seq()
        write_target(self._disk, self._directory, Target(self._epoch, now_ms, safe_seq))
        wake_ms = self.next_call_ms = self._runner.step(now_ms, safe_seq)
        self._tell(releaser, now_ms)
        latest_ms = now_ms + self._settings.lead_ms // 8
        return latest_ms if wake_ms is None else min(wake_ms, latest_ms)

    def run_until_reached(self, now_ms: int, releaser: Releaser) -> None:
        """Step until every shard has handed over all that is due within the lead."""
        self._runner.run_until_reached(now_ms, self._store.writer.safe_seq())
        self._tell(releaser, now_ms)

    def _tell(self, releaser: Releaser, now_ms: int) -> None:
        handed_over = self._runner.report(now_ms).handed_over_count
        if handed_over != self._handed_over:
            self._handed_over = handed_over
            releaser.ready_changed()

    def handed_over_ms(self) -> int:
        """No shard has handed over a message that is due at or after this time."""
        return max(cursor.open_tick for cursor in self._runner.cursors) * self._settings.tick_ms

    def look_at_shards(self) -> FifoSafe:
        """Notes how far the shards are; the answer says before which time they handed over everything."""
        clear_ms = min(self._runner.clear_tick * self._settings.tick_ms, _SAFE_MS_MAX)
        first_seq = min(cursor.seq for cursor in self._runner.cursors)
        return lambda: min(clear_ms, self._earliest_unabsorbed_ms(first_seq))

    def _earliest_unabsorbed_ms(self, first_seq: int) -> int:
        with self._store.writer.lock:
            first, end = max(first_seq, self._entries.head_seq), self._store.indexes.ledger.next_seq
            if first >= end:
                return _SAFE_MS_MAX
            rows = self._store.indexes.entries.read(first, end)
            far = rows["deliver_at_ms"][rows["flags"] & (FLAG_NEAR | FLAG_LEVEL) == 0]
            return int(np.min(far, initial=_SAFE_MS_MAX))

    def view(self, now_ms: int) -> PipelineView:
        return PipelineView("embedded", "running", self._runner.lag_ms(now_ms), 0)

    def close(self) -> None:
        self._runner.close()
        self._entries.close()
