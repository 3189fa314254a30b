"""The embedded runner: turns the wheels of all shards inside the broker process.

Owns the engines while the broker holds the shards, and the decision when each takes a step. It has no
thread and no clock: the broker's loop calls `step` with the time and does as the returned wake time says.
Leaves to others: raising the epoch (`target.raise_epoch`), deciding which runner takes steps (takeover).

Invariants: one call takes at most one bounded step per shard; the tick never decreases.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidemill.core.errors import TidemillError
from tidemill.log.disk import Disk
from tidemill.timer.cursor import Cursor
from tidemill.timer.engine import OnDamage, ShardEngine, StepTarget, log_damage
from tidemill.timer.far_scan import FarScan, positions_of
from tidemill.timer.idle_rule import Call, call_for_step, target_tick
from tidemill.timer.ready_format import Runner
from tidemill.timer.settings import StepLimits, TimerSettings
from tidemill.timer.step_figures import StepFigures
from tidemill.timer.target import shard_directories, shard_directory
from tidemill.timer.timer_store import EntrySource


class EmbeddedRunner:
    """All shards of a timer directory. Open it under an epoch that was raised for it."""

    def __init__(
        self,
        disk: Disk,
        timer_directory: Path,
        settings: TimerSettings,
        entries: EntrySource,
        *,
        lead_ms: int,
        limits: StepLimits | None = None,
        on_damage: OnDamage = log_damage,
        figures: StepFigures | None = None,
    ) -> None:
        self._disk = disk
        self._timer_directory = timer_directory
        self._settings = settings
        self._entries = entries
        self._lead_ms = lead_ms
        self._on_damage = on_damage
        self.figures = figures or StepFigures()
        self._limits = limits or StepLimits()
        self.epoch = 0  # steps are taken under it
        self._engines: list[ShardEngine] = []
        self._far_scan = FarScan(entries)
        self._idle: tuple[int | None, int] | None = None  # the last idle answer: (wake ms, end seq)
        self.is_stale = False  # another runner has taken over; nothing this one does has any effect

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        return tuple(engine.cursor for engine in self._engines)

    @property
    def clear_tick(self) -> int:
        """No absorbed message waits below this tick, in any shard; far in the future where none waits."""
        return min(cursor.clear_tick for cursor in self.cursors)

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that a shard's cursor carries."""
        return max(cursor.epoch for cursor in self.cursors)

    def open(self, epoch: int, start_seq: int) -> None:
        """Take the shards; no message below `start_seq` is pending. Raises `DirectoryLockedError`."""
        self.epoch = epoch
        self._idle = None
        self.is_stale = False
        self._far_scan = FarScan(self._entries)
        self._drop_surplus_shards()
        try:
            for shard in range(self._settings.shards):
                engine = ShardEngine(
                    self._disk,
                    self._timer_directory,
                    shard,
                    self._settings,
                    self._entries,
                    runner=Runner.EMBEDDED,
                    on_damage=self._on_damage,
                )
                self._engines.append(engine.open(start_seq))
        except TidemillError:  # a full disk too: a lock of our own would look like a stranger's next time
            self.close()
            raise

    def step(self, now_ms: int, synced_end_seq: int) -> int | None:
        """Take a bounded step in each shard if one is called for. Blocks on disk syncs.

        Returns when to call again: at once where the target was not reached, None where only new rows can
        call for a step (or another runner has taken over).
        """
        if self._idle is not None:
            wake_ms, idle_end_seq = self._idle
            if synced_end_seq == idle_end_seq and (wake_ms is None or now_ms < wake_ms):
                return wake_ms
        call = self._call(now_ms, synced_end_seq)
        if call.is_called_for:
            if not self._step_all(self._target(now_ms, synced_end_seq)):
                return now_ms
            call = self._call(now_ms, synced_end_seq)
            if call.is_called_for:
                return None if self.is_stale else now_ms
        self._idle = (call.wake_ms, synced_end_seq)
        return call.wake_ms

    def run_until_reached(self, now_ms: int, synced_end_seq: int) -> None:
        """Step until every shard is at the target of `now_ms`, whether or not anything is due.

        Returns early if another runner has taken over.
        """
        target = self._target(now_ms, synced_end_seq)
        while not self._step_all(target):
            pass

    def rebuild(self, damaged: Mapping[int, str], start_seq: int) -> None:
        """Build shards again, each for the reason beside it; no message below `start_seq` is pending."""
        self._idle = None
        for engine in self._engines:
            if engine.shard in damaged:
                engine.rebuild(start_seq, damaged[engine.shard])

    def lag_ms(self, now_ms: int) -> int:
        """How far the slowest shard is behind; 0 while everything within the lead is handed over."""
        tick_ms = self._settings.tick_ms
        target = target_tick(now_ms, self._lead_ms, tick_ms)
        return max(0, target - min(max(c.tick, min(c.clear_tick, target)) for c in self.cursors)) * tick_ms

    def close(self) -> None:
        """Let go of all shards."""
        for engine in self._engines:
            engine.close()
        self._engines = []

    def _target(self, now_ms: int, synced_end_seq: int) -> StepTarget:
        tick = target_tick(now_ms, self._lead_ms, self._settings.tick_ms)
        return StepTarget(self.epoch, synced_end_seq, tick)

    def _call(self, now_ms: int, synced_end_seq: int) -> Call:
        positions = positions_of(self.cursors, self._far_scan, synced_end_seq)
        return call_for_step(positions, now_ms, self._lead_ms, self._settings.tick_ms, self._limits.rows_max)

    def _step_all(self, target: StepTarget) -> bool:
        """One bounded step in each shard; True when all have reached the target or none may."""
        self._idle = None
        self.is_stale = False  # a target that was damaged for a moment looks like that of another
        has_reached = True
        for engine in self._engines:
            outcome = engine.step(target, self._limits)
            self.is_stale = self.is_stale or outcome.is_stale
            has_reached &= outcome.has_reached
            if outcome.work is not None:
                self.figures.add(Runner.EMBEDDED, outcome.work)
        return has_reached or self.is_stale

    def _drop_surplus_shards(self) -> None:
        """Remove the shards of an older, larger number; the others absorb their messages again."""
        known = {shard_directory(self._timer_directory, shard) for shard in range(self._settings.shards)}
        for directory in shard_directories(self._disk, self._timer_directory):
            if directory not in known:
                self._disk.remove_tree(directory)
