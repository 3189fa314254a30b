"""The engine of one shard: the one place that orders the side effects of a step.

Owns the shard's directory and its lock:

    shard-000/lock             who is at work
    shard-000/header.*         what the files were made for; another shape drops the shard
    shard-000/cursor.*         how far it has come
    shard-000/attempt.*        the last step number that was used, whether or not the step was finished
    shard-000/timer-log/ wheel the timer store (or rocksdb/)
    shard-000/ready/           what was handed over and is not settled yet

Leaves to others: what time it is and how far to go (the target), what is still pending (the releaser).

Invariants:
- what a step does depends on cursor and target alone;
- a step leaves its traces in such an order that after a crash between any two of them the next step, from
  the old cursor, loses nothing: it may hand over again, never too little;
- everything here can be deleted: the engine then absorbs again from `start_seq`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError, TidemillError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk, LockHandle
from tidemill.store.formats.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR
from tidemill.timer.attempt_format import ATTEMPT_FORMAT, ATTEMPT_NAME, decode_attempt, encode_attempt
from tidemill.timer.cursor import CURSOR_FORMAT, CURSOR_NAME, Cursor, decode_cursor, encode_cursor
from tidemill.timer.ready_files import ReadyFiles
from tidemill.timer.ready_format import ReadyHeader, Runner
from tidemill.timer.rocksdb.rocks_store import ROCKS_NAME, RocksStore
from tidemill.timer.settings import StepLimits, StoreKind, TimerSettings
from tidemill.timer.shard_header import encode_header, header_checkpoint, read_header
from tidemill.timer.shard_lock import take_shard_lock
from tidemill.timer.stages.admit import Batch, admit, join, new_batch, placed_again
from tidemill.timer.stages.due import agree, hand_over, split
from tidemill.timer.step_figures import Stage, StageWatch, StepWork
from tidemill.timer.target import read_cursor, read_target, shard_directory
from tidemill.timer.timer_store import Drained, EntrySource, TimerStore
from tidemill.timer.wheel.wheel_store import TIMER_LOG_NAME, WHEEL_NAME, WheelStore

logger = logging.getLogger(__name__)

OnDamage = Callable[[Path, str], None]  # hears a shard's directory, and what is wrong with it

_NO_TIMERS = new_batch(np.empty(0, np.int64), np.empty(0, ENTRY))


def log_damage(directory: Path, why: str) -> None:
    """What is done about damage where it is not counted: one line in the log."""
    logger.warning("%s is damaged (%s); the shard is rebuilt from the entries", directory, why)


@dataclass(frozen=True, slots=True)
class StepTarget:
    """How far a step shall go: absorb below `seq`, drain below `tick`."""

    epoch: int
    seq: int
    tick: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the first stage admits of the entries `[first_seq, end_seq)`."""

    first_seq: int
    end_seq: int
    batch: Batch
    scan_s: float = 0.0  # how long reading them took


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did. `work` is None where there was nothing to do."""

    cursor: Cursor
    has_reached: bool
    is_stale: bool = False
    work: StepWork | None = None


class ShardEngine:
    """Runs the timer of one shard. Holds the shard's lock from `open` to `close`."""

    def __init__(
        self,
        disk: Disk,
        timer_directory: Path,
        shard: int,
        settings: TimerSettings,
        entries: EntrySource,
        *,
        runner: Runner,
        on_damage: OnDamage = log_damage,
    ) -> None:
        self._disk = disk
        self._timer_directory = timer_directory
        self._directory = shard_directory(timer_directory, shard)
        self.shard = shard
        self._settings = settings
        self._entries = entries
        self._runner = runner
        self._on_damage = on_damage
        self._start_seq = 0
        self._lock: LockHandle | None = None
        self._store: TimerStore | None = None
        self._cursor = Cursor()
        self._header = header_checkpoint(disk, self._directory)
        self._checkpoint = Checkpoint(disk, self._directory, CURSOR_NAME, CURSOR_FORMAT, decode_cursor)
        self._attempt = Checkpoint(disk, self._directory, ATTEMPT_NAME, ATTEMPT_FORMAT, decode_attempt)
        self._last_attempt = (0, 0)
        self.ready = ReadyFiles(disk, self._directory)

    @property
    def cursor(self) -> Cursor:
        """The durable cursor."""
        return self._cursor

    def open(self, start_seq: int) -> ShardEngine:
        """Lock the shard and make it ready; no message below `start_seq` is pending.

        Raises `DirectoryLockedError` if another runner has the shard. A shard that is missing, made for other
        settings or damaged is made anew and absorbs from `start_seq`. Whatever it raises, nothing is held.
        """
        self._disk.make_dir(self._directory)
        self._lock = take_shard_lock(self._disk, self._directory)
        self._start_seq = start_seq
        try:
            self._load_or_rebuild()
        except TidemillError:
            self.close()
            raise
        return self

    def _load_or_rebuild(self) -> None:
        try:
            self._load()
            return
        except CorruptionError as error:
            why = str(error)
        # Not before the error is gone: it holds on to what it met, and that holds RocksDB's files.
        self.rebuild(self._start_seq, why)

    def rebuild(self, start_seq: int, why: str) -> None:
        """Build the shard again, because it is damaged; no message below `start_seq` is pending."""
        self._start_seq = start_seq
        self._on_damage(self._directory, why)
        self._rebuild()

    def step(self, target: StepTarget, limits: StepLimits, admitted: Admitted | None = None) -> StepOutcome:
        """Work from the cursor towards `target`, as far as `limits` allow. Blocks on disk syncs.

        `admitted` may bring what the first stage admits, where the caller has read the entries already;
        it is used if it covers just the seqs that this step reads.

        A target of another epoch, or one that asks for less than the cursor has, changes nothing. An error
        leaves the cursor where it was, and the next step begins by clearing away what this one left.
        """
        if self._is_stale(target):
            return StepOutcome(self._cursor, has_reached=False, is_stale=True)
        if target.seq <= self._cursor.seq and target.tick <= self._cursor.tick:
            return StepOutcome(self._cursor, has_reached=True)
        try:
            if self._store is None:  # a rebuild was cut short, by a full disk
                self._rebuild()
            return self._step(target, limits, admitted)
        except CorruptionError as error:
            why = str(error)
        self.rebuild(self._start_seq, why)  # not before the error is gone, as above
        return StepOutcome(self._cursor, has_reached=False)

    def close(self) -> None:
        """Let go of files and lock. Nothing is written: the cursor is always as far as it can be."""
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _step(self, target: StepTarget, limits: StepLimits, admitted: Admitted | None) -> StepOutcome:
        """The order of a step. Read it from top to bottom: each act makes the one before it count."""
        assert self._store is not None
        store, tick_ms = self._store, self._settings.tick_ms
        cursor = self._cursor = store.truncate(self._cursor)
        watch = StageWatch(admitted.scan_s if admitted is not None else 0.0)

        drained = store.due(cursor, self._until_tick(target, limits), limits.due_max)
        came, again = split(self._still_kept(drained), drained.open_tick, tick_ms)
        watch.ends(Stage.DUE)
        end_seq, fresh = self._admitted(target, limits, admitted)
        watch.ends(Stage.SCAN)
        late, early = split(fresh, drained.open_tick, tick_ms)
        ready, placements = hand_over(join(came, late))
        watch.ends(Stage.HAND_OVER)

        earliest = store.absorb(join(placed_again(again), early), drained.open_tick)
        watch.ends(Stage.ABSORB)
        step = self._next_step(target.epoch)
        if len(ready):
            self._note_attempt(target.epoch, step)
            header = ReadyHeader(self._runner, self.shard, target.epoch, step, cursor.tick, drained.tick)
            self.ready.write(header, ready, placements)
        next_cursor = Cursor(
            epoch=target.epoch,
            step=step,
            seq=end_seq,
            tick=drained.tick,
            next_due_tick=self._next_due(drained, earliest),
            resume_position=drained.resume_position,
            mark=store.mark(drained.tick),
        )
        store.commit(next_cursor)
        self._checkpoint.save(encode_cursor(next_cursor), sync=True)
        self._cursor = next_cursor
        store.drop_behind(next_cursor.tick)
        watch.ends(Stage.HAND_OVER)
        work = StepWork(len(fresh), len(ready), len(again), len(late), watch.times)
        has_reached = next_cursor.seq >= target.seq and next_cursor.tick >= target.tick
        return StepOutcome(next_cursor, has_reached, work=work)

    def _until_tick(self, target: StepTarget, limits: StepLimits) -> int:
        """The tick this step aims at: never decreases, and no further than the limit where timers wait."""
        cursor = self._cursor
        until_tick = max(cursor.tick, target.tick)
        if limits.ticks_max is not None and cursor.next_due_tick is not None:
            until_tick = min(until_tick, cursor.tick + limits.ticks_max)
        return until_tick

    def _still_kept(self, drained: Drained) -> Batch:
        """The drained timers with their entries. One below the head was settled long ago."""
        self._require_own(drained)
        is_kept = drained.seqs >= self._entries.head_seq
        seqs = drained.seqs[is_kept]
        if not len(seqs):
            return _NO_TIMERS
        batch = Batch(seqs, self._entries.take(seqs), drained.placements[is_kept])
        if drained.frames is not None and drained.rolls is not None:
            frames, rolls = drained.frames[is_kept], drained.rolls[is_kept]
            if not agree(batch, frames, rolls, drained.open_tick, self._settings.tick_ms):
                raise CorruptionError("a timer is not that of its message")
        return batch

    def _require_own(self, drained: Drained) -> None:
        """Raise `CorruptionError` for a seq that this shard has never absorbed."""
        seqs = drained.seqs
        if len(seqs) and (int(seqs.min()) < 0 or int(seqs.max()) >= self._cursor.seq):
            raise CorruptionError("a timer has a seq that was never absorbed")
        if self._settings.shards > 1 and (seqs % self._settings.shards != self.shard).any():
            raise CorruptionError("a timer has the seq of another shard")

    def _admitted(
        self, target: StepTarget, limits: StepLimits, admitted: Admitted | None
    ) -> tuple[int, Batch]:
        """How far this step reads the entries, and those of this shard among them."""
        first_seq = max(self._cursor.seq, self._entries.head_seq)
        end_seq = max(self._cursor.seq, min(target.seq, first_seq + limits.rows_max))
        if first_seq >= end_seq:
            return end_seq, _NO_TIMERS
        if admitted is not None and (admitted.first_seq, admitted.end_seq) == (first_seq, end_seq):
            return end_seq, admitted.batch
        rows = self._entries.rows(first_seq, end_seq)
        return end_seq, admit(rows, first_seq, self.shard, self._settings.shards, FLAG_NEAR | FLAG_LEVEL)

    def _next_due(self, drained: Drained, earliest: int | None) -> int | None:
        """The first tick with timers after this step: inside a slot, among the old ones, or a new one."""
        assert self._store is not None
        if drained.resume_position >= 0:
            return drained.tick
        old = self._cursor.next_due_tick
        if old is not None and old < drained.tick:
            old = self._store.next_due(self._cursor, drained.tick)
        return min((tick for tick in (old, earliest) if tick is not None), default=None)

    def _is_stale(self, target: StepTarget) -> bool:
        if target.epoch < self._cursor.epoch:
            return True
        try:
            current = read_target(self._disk, self._timer_directory)
        except CorruptionError:
            return True
        return current is not None and current.epoch != target.epoch

    def _next_step(self, epoch: int) -> int:
        """A step number that no ready file of this epoch has had.

        A step that died between its ready file and its cursor has used its number, and the releaser may
        have read and removed that file already.
        """
        attempt_epoch, attempt_step = self._last_attempt
        return max(self._cursor.step, attempt_step if attempt_epoch == epoch else 0) + 1

    def _note_attempt(self, epoch: int, step: int) -> None:
        # Not synced: a power cut ends the broker too, and with it the epoch.
        self._attempt.save(encode_attempt(epoch, step), sync=False)
        self._last_attempt = (epoch, step)

    def _load(self) -> None:
        header = read_header(self._disk, self._directory)
        cursor = read_cursor(self._disk, self._directory)
        is_fitting = header == encode_header(self._settings, self.shard)
        if is_fitting and cursor is None:  # it was there before the header
            raise CorruptionError("the cursor cannot be read")
        if not is_fitting or cursor is None or not self._disk.exists(self.ready.directory):
            if header is not None and not is_fitting:
                logger.warning(
                    "shard %d of the timer was made for other settings; pending messages are absorbed again",
                    self.shard,
                )
            self._rebuild()
            return
        self._checkpoint.load()
        attempt = self._attempt.load()
        if attempt is not None:
            self._last_attempt = decode_attempt(attempt)
        self.ready.sweep()
        self._store = self._made_store()
        self._cursor = self._store.truncate(cursor)
        if self._cursor != cursor:
            self._checkpoint.save(encode_cursor(self._cursor), sync=True)

    def _rebuild(self) -> None:
        """Empty the shard and begin again at `start_seq`; steps and epochs go on rising."""
        if self._store is not None:
            self._store.close()
            self._store = None
        old = read_cursor(self._disk, self._directory) or self._cursor
        # First of all: who asks how far we have come must not count on what is removed now.
        self._cursor = Cursor(epoch=old.epoch, step=old.step, seq=self._start_seq)
        self._header.remove()
        self._checkpoint.remove()
        self._disk.remove_tree(self.ready.directory)
        # The files of every kind of store, durably: what comes next may use the same names.
        self._disk.remove(self._directory / WHEEL_NAME)
        self._disk.remove_tree(self._directory / TIMER_LOG_NAME)
        self._disk.remove_tree(self._directory / ROCKS_NAME)
        self._disk.sync_dir(self._directory)
        self._disk.make_dir(self.ready.directory)
        self._store = self._made_store()
        self._store.commit(self._cursor)
        self._store.truncate(self._cursor)
        self._checkpoint.save(encode_cursor(self._cursor), sync=True)
        self._header.save(encode_header(self._settings, self.shard), sync=True)

    def _made_store(self) -> TimerStore:
        """The store that the settings ask for; it finds what is there and makes what is not."""
        kind = RocksStore if self._settings.store is StoreKind.ROCKSDB else WheelStore
        return kind(self._disk, self._directory, self._settings)
