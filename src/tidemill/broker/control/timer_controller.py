"""Which runner drives the timer: the broker's side of it.

Owns the decision between the embedded runner and the Spark pipeline, the epoch that goes with it, the
target file, and what the releaser must know of the shards. At the start the broker turns; when the pipeline
reports ready it hands the shards over; when a step is called for and none is finished for a quarter of the
lead, or the pipeline dies, it takes them back. Either way the same stages run, so a dead, slow or starting
Spark makes no message late.

While a simulated clock is moved, the target runs ahead of it (`aim_at`): everything due on the way is handed
over first, in a few large steps, and the releaser lets each go as the clock passes its millisecond.

Invariants: the epoch is raised, durably, before a runner acts under it; the pipeline reads entries never
further than what a power cut would leave; how long another process may take is measured on a clock that runs
by itself, also where the broker's is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemill.broker.control.eviction import free_shard, remove_aside
from tidemill.broker.control.holds import Holds
from tidemill.broker.control.pipeline_process import PipelineProcess, PipelineState
from tidemill.broker.control.pipeline_view import PipelineView
from tidemill.broker.control.shard_repair import ShardRepair, first_pending
from tidemill.broker.control.spark_steps import SparkSteps, StepLog
from tidemill.broker.control.unabsorbed import EarliestUnabsorbed
from tidemill.broker.query.wheel_picture import WheelPictures
from tidemill.core.config import BrokerSettings
from tidemill.log.disk import Disk
from tidemill.release.ready_reader import ShardsSeen
from tidemill.release.releaser import Releaser
from tidemill.store.entry_files import EntryFiles
from tidemill.store.message_store import MessageStore
from tidemill.timer.check import check_shard, check_timer
from tidemill.timer.cursor import Cursor
from tidemill.timer.embedded_runner import EmbeddedRunner
from tidemill.timer.far_scan import FarScan, call_at
from tidemill.timer.idle_rule import target_tick
from tidemill.timer.ready_format import Runner
from tidemill.timer.settings import StepLimits, TimerSettings
from tidemill.timer.step_figures import StepFigures
from tidemill.timer.target import (
    Target,
    raise_epoch,
    read_cursor,
    shard_directories,
    shard_directory,
    write_target,
)
from tidemill.timer.wheel.wheel_view import WheelView

_SAFE_MS_MAX = 1 << 62
_WATCH_EVERY_MS = 250
_HAND_BACK_MS_FIRST = 5_000
_HAND_BACK_MS_MAX = 300_000


@dataclass(slots=True)
class _Watch:
    """What the broker remembers while Spark turns: since when a step is called for, and the last progress.

    Times are those of the machine's own clock.
    """

    cursors: tuple[Cursor, ...] = ()
    called_since_ms: int | None = None
    progress_at_ms: int = 0
    has_worked: bool = False  # at least one step was finished

    def see(self, cursors: tuple[Cursor, ...], is_called_for: bool, machine_ms: int) -> bool:
        """Note how things are; True when the shards have moved."""
        has_moved = cursors != self.cursors
        if has_moved:
            self.cursors, self.progress_at_ms, self.has_worked = cursors, machine_ms, True
        if not is_called_for:
            self.called_since_ms = None
        elif self.called_since_ms is None:
            self.called_since_ms = machine_ms
        return has_moved

    def stuck_ms(self, machine_ms: int) -> int:
        """For how long a step has been called for without any being finished."""
        if self.called_since_ms is None:
            return 0
        return machine_ms - max(self.called_since_ms, self.progress_at_ms)


class TimerController:
    """Runs the timer, or watches the process that does. `step` is for one thread."""

    def __init__(
        self,
        disk: Disk,
        store: MessageStore,
        settings: BrokerSettings,
        timer_settings: TimerSettings,
        limits: StepLimits,
        *,
        now_ms: Callable[[], int],
        machine_ms: Callable[[], int],
        wake: Callable[[], None],
        pipeline: PipelineProcess | None,
        pipeline_problem: str = "",
        holds: Holds,
    ) -> None:
        """`pipeline_problem` says why there is no pipeline although one was wanted."""
        self._disk = disk
        self._store = store
        self.holds = holds
        self._earliest_unabsorbed = EarliestUnabsorbed(store)
        self._settings = settings
        self._timer_settings = timer_settings
        self._limits = limits
        self._now_ms = now_ms
        self._machine_ms = machine_ms
        self._pipeline = pipeline
        self._directory = store.directory / "timer"
        disk.make_dir(self._directory)
        remove_aside(disk, self._directory)
        chunk_rows = store.settings.sizes.entry_chunk_rows
        self._entries = EntryFiles(
            disk,
            store.directory / "index" / "entries",
            chunk_rows,
            head_seq=lambda: store.ledger.head_seq,
        )
        self._far_scan = FarScan(self._entries)
        self.repair = ShardRepair(timer_settings.shards, store.repairs, wake)
        self.figures = StepFigures()
        self._spark_steps = SparkSteps(disk, self._directory, self.figures)
        if pipeline is not None:
            self.figures.steps[Runner.SPARK] = pipeline.step_durations
        self._runner = self._make_runner()
        self._turner = Runner.EMBEDDED
        self._since_ms = now_ms()
        self._epoch = 0
        self._aim_ms = 0
        self._watch = _Watch()
        self._looked_at: tuple[Cursor, ...] = ()  # by the releaser, in its thread
        self.steps = StepLog(settings.tick_ms)
        view = WheelView(disk, self._directory, timer_settings)
        self.wheel = WheelPictures(view, timer_settings, self._cursors, now_ms, self._pending_by_minute)
        self._handed_over = 0
        self._state = PipelineState("running" if pipeline is None else "starting", pipeline_problem)
        self.takeover_count = 0
        self._hand_back_at_ms, self._hand_back_pause_ms = 0, _HAND_BACK_MS_FIRST
        self.next_call_ms: int | None = None  # when a step is called for, if nothing new comes
        self.is_called_for = False  # a step is to be taken before the clock may move on
        self._take_shards()

    def _make_runner(self) -> EmbeddedRunner:
        return EmbeddedRunner(
            self._disk,
            self._directory,
            self._timer_settings,
            self._entries,
            lead_ms=self._settings.lead_ms,
            limits=self._limits,
            on_damage=self.repair.report,
            figures=self.figures,
        )

    @property
    def timer_directory(self) -> Path:
        return self._directory

    @property
    def pipeline_pid(self) -> int | None:
        return self._pipeline.pid if self._pipeline is not None else None

    @property
    def is_turned_elsewhere(self) -> bool:
        return self._turner is Runner.SPARK

    # -- one step ---------------------------------------------------------------------------------

    def step(self, now_ms: int, releaser: Releaser) -> int:
        """Run the timer, or watch the process that does; returns when the next step is due."""
        if self._pipeline is not None:
            self._state = self._pipeline.tend()
        if self.repair:
            self._rebuild(releaser)
        if self._turner is Runner.SPARK:
            return self._watch_step(now_ms, releaser)
        wake_ms = self._embedded_step(now_ms, releaser)
        if self._may_hand_over():
            self._hand_over()
            return now_ms
        return wake_ms

    def aim_at(self, until_ms: int) -> None:
        """The clock is about to move to `until_ms`: hand over what is due by then beforehand."""
        self._aim_ms = until_ms

    def _embedded_step(self, now_ms: int, releaser: Releaser) -> int:
        target = self.write_target(now_ms)
        wake_ms = self.next_call_ms = self._runner.step(target.now_ms, target.synced_end_seq)
        self.is_called_for = wake_ms is not None and wake_ms <= target.now_ms
        self._tell(releaser, now_ms)
        self.steps.see(now_ms, self._turner.name.lower(), self._runner.cursors)
        latest_ms = now_ms + (self._settings.lead_ms // 8 if self._pipeline is None else _WATCH_EVERY_MS)
        return latest_ms if wake_ms is None else min(wake_ms, latest_ms)

    def _watch_step(self, now_ms: int, releaser: Releaser) -> int:
        target = self.write_target(now_ms)
        cursors, machine_ms = self._cursors(), self._machine_ms()
        self._spark_steps.look()
        self.steps.see(now_ms, self._turner.name.lower(), cursors)
        settings = self._settings
        call = call_at(
            cursors, self._far_scan, target, settings.lead_ms, settings.tick_ms, self._limits.rows_max
        )
        self.next_call_ms, self.is_called_for = call.wake_ms, call.is_called_for
        self._tell_rebuilt(self._watch.cursors, cursors)
        if self._watch.see(cursors, call.is_called_for, machine_ms):
            releaser.ready_changed()
        is_gone = self._state.name == "stopped"
        if is_gone or self._watch.stuck_ms(machine_ms) > settings.lead_ms // 4:
            self._take_over(machine_ms)
            return now_ms
        return now_ms + _WATCH_EVERY_MS

    def write_target(self, now_ms: int) -> Target:
        """Write the target of the timer runner. For the thread that takes the steps."""
        target = Target(self._epoch, max(now_ms, self._aim_ms), self._absorb_end(), self._turner)
        write_target(self._disk, self._directory, target)
        return target

    def _tell(self, releaser: Releaser, now_ms: int) -> None:
        handed_over = self._runner.figures.counts[Runner.EMBEDDED].handed_over
        if handed_over != self._handed_over:
            self._handed_over = handed_over
            releaser.ready_changed()

    # -- changing hands ---------------------------------------------------------------------------

    def _take_shards(self) -> None:
        """Raise the epoch and take every shard, ending any process that holds one."""
        now_ms = self._now_ms()
        self._raise_epoch(now_ms, Runner.EMBEDDED)
        if self._pipeline is not None:
            for directory in shard_directories(self._disk, self._directory):
                free_shard(self._disk, directory, self._epoch)
        self._runner.open(self._epoch, first_pending(self._store))
        if (known := self._runner.highest_epoch) >= self._epoch:
            # Damage had hidden it: in the target and the newest cursor, while the timer store kept its own.
            self._raise_epoch(now_ms, Runner.EMBEDDED, above=known)
            self._runner.epoch = self._epoch
        self._turner, self._since_ms = Runner.EMBEDDED, now_ms
        self._handed_over = -1  # look at the ready files that others left

    def _raise_epoch(self, now_ms: int, runner: Runner, *, above: int = 0) -> None:
        end = self._absorb_end()
        self._epoch = raise_epoch(self._disk, self._directory, now_ms, end, runner, above=above)

    def _take_over(self, machine_ms: int) -> None:
        """Take the shards back; the next try waits longer each time that Spark did nothing with them."""
        self.takeover_count += 1
        doubled_ms = min(_HAND_BACK_MS_MAX, self._hand_back_pause_ms * 2)
        self._hand_back_pause_ms = _HAND_BACK_MS_FIRST if self._watch.has_worked else doubled_ms
        self._hand_back_at_ms = machine_ms + self._hand_back_pause_ms
        self._take_shards()

    def _rebuild(self, releaser: Releaser) -> None:
        """Rebuild damaged shards; takes the shards over first, if another process is the runner."""
        damaged = self.repair.listed()
        if self.is_turned_elsewhere:
            self._take_over(self._machine_ms())
        self._runner.rebuild(damaged, first_pending(self._store))
        self.repair.is_done(damaged)
        releaser.ready_changed()

    def _tell_rebuilt(self, before: tuple[Cursor, ...], cursors: tuple[Cursor, ...]) -> None:
        """Count the shards that Spark found damaged and built again: their cursors went back."""
        for shard, (old, new) in enumerate(zip(before, cursors, strict=bool(before))):
            if new.seq < old.seq:
                self.repair.report(shard_directory(self._directory, shard), "found by Spark")

    def _may_hand_over(self) -> bool:
        return self._state.name == "ready" and self._machine_ms() >= self._hand_back_at_ms

    def _hand_over(self) -> None:
        """End our part and let Spark turn."""
        # Before the runner lets go of its cursors: the releaser asks for them from its own thread, and finds
        # them in the files from now on.
        self._turner = Runner.SPARK
        self._runner.close()
        now_ms = self._now_ms()
        self._raise_epoch(now_ms, Runner.SPARK)
        self._since_ms = now_ms
        self._watch = _Watch(self._cursors(), None, self._machine_ms())

    # -- what others want to know -----------------------------------------------------------------

    def reach(self, now_ms: int, releaser: Releaser) -> None:
        """Absorb also what no step is called for yet. Spark is left alone: nothing due can be among it."""
        if not self.is_turned_elsewhere:
            self._runner.run_until_reached(now_ms, self._absorb_end())
            self._tell(releaser, now_ms)

    def _absorb_end(self) -> int:
        """Entries below this may be absorbed: what is safe, and no more than a hold allows."""
        return self.holds.absorb_end(self._store.safe_seq())

    @property
    def absorbed_end(self) -> int:
        """No shard has absorbed an entry from this seq on."""
        return max(self.absorbed_ends)

    @property
    def absorbed_ends(self) -> tuple[int, ...]:
        """For each shard: it has absorbed all of its entries below this seq."""
        return tuple(cursor.seq for cursor in self._cursors())

    def handed_over_ms(self) -> int:
        """No shard has handed over a message that is due at or after this time."""
        return max(cursor.open_tick for cursor in self._cursors()) * self._settings.tick_ms

    def _pending_by_minute(self, first: int, end: int) -> dict[int, int]:
        with self._store.read():
            return self._store.due_counts.minutes(None, first, end)

    def look_at_shards(self) -> ShardsSeen:
        """Notes how far the shards are; the answer says before which time they handed over everything."""
        cursors = self._cursors()
        have_moved, self._looked_at = cursors != self._looked_at, cursors
        clear_ms = min(min(c.clear_tick for c in cursors) * self._settings.tick_ms, _SAFE_MS_MAX)
        first_seq = min(cursor.seq for cursor in cursors)
        unabsorbed = self._store.ledger.next_seq - first_seq
        held_seq = max(self._absorb_end(), *(c.seq for c in cursors)) if self.holds.holds_absorbing else None
        return ShardsSeen(lambda: self._safe_ms(clear_ms, first_seq), have_moved, unabsorbed, held_seq)

    def _safe_ms(self, clear_ms: int, first_seq: int) -> int:
        if self.repair:
            return 0
        return min(clear_ms, self._earliest_unabsorbed.due_ms(first_seq))

    def _cursors(self) -> tuple[Cursor, ...]:
        if self._turner is Runner.EMBEDDED:
            return self._runner.cursors
        return tuple(
            read_cursor(self._disk, shard_directory(self._directory, shard)) or Cursor()
            for shard in range(self._timer_settings.shards)
        )

    def view(self, now_ms: int) -> PipelineView:
        return PipelineView(
            runner=self._turner.name.lower(),
            store=self._timer_settings.store.value,
            state=self._state.name,
            lag_ms=self._lag_ms(now_ms),
            takeovers=self.takeover_count,
            unabsorbed=max(0, self._store.safe_seq() - min(self.absorbed_ends)),
            since_ms=self._since_ms,
            problem=self._state.problem,
        )

    def _lag_ms(self, now_ms: int) -> int:
        """By how much the slowest shard is later than the idle rule allows; 0 while all is well."""
        tick_ms = self._settings.tick_ms
        tick = target_tick(now_ms, self._settings.lead_ms * 3 // 4, tick_ms)
        behind = max(tick - max(c.tick, min(c.clear_tick, tick)) for c in self._cursors())
        return max(0, behind) * tick_ms

    def check(self) -> list[str]:
        """Findings in the timer's files that building a damaged shard again does not put right."""
        damaged = {}
        for shard in range(self._timer_settings.shards):
            if findings := check_shard(self._disk, shard_directory(self._directory, shard)):
                damaged[shard] = findings[0]
        if damaged and not self.is_turned_elsewhere:
            self._runner.rebuild(damaged, first_pending(self._store))
        return check_timer(self._disk, self._directory)

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
        self._runner.close()
        self._entries.close()
