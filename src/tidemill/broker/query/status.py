"""The status at one moment: counts, lateness, timer runner, disk space, what releases wait for.

Reads and shapes; decides nothing. A level's queue belongs to a delay: it is shown under the (lowest) level
that means that delay now, and under level 0 where none does any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.broker.control.holds import HoldsState
from tidemill.broker.control.pipeline_view import PipelineView
from tidemill.broker.control.timer_controller import TimerController
from tidemill.broker.health import Health, HealthView
from tidemill.broker.query.metrics_history import sample_of
from tidemill.broker.query.wait_views import OverdueView, WaitView, overdue_views, wait_views
from tidemill.broker.send.service import SendService
from tidemill.core.clock import Clock
from tidemill.core.config import BrokerSettings
from tidemill.release.clock_guard import ClockGuard
from tidemill.release.lateness import LatenessSummary
from tidemill.release.releaser import Releaser
from tidemill.store.damaged_messages import DamageCounts, damage_counts
from tidemill.store.disk_space import DiskSpaceView
from tidemill.store.level_queues import DelayView
from tidemill.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class LevelView:
    level: int  # 0: of a table used before
    delay_ms: int
    waiting: int
    next_due_ms: int | None
    lag_ms: int  # how long the earliest of what waits has been due


def level_views(store: MessageStore, settings: BrokerSettings, now_ms: int) -> list[LevelView]:
    """Every level of the table, then delays of an earlier table that something still waits with."""
    with store.read():
        found = {view.delay_ms: view for view in store.levels.view()}
    views = []
    for level, delay_ms in enumerate(settings.level_delays_ms, 1):
        views.append(_view(level, delay_ms, found.pop(delay_ms, None), now_ms))
    return views + [_view(0, delay_ms, delay, now_ms) for delay_ms, delay in found.items()]


def _view(level: int, delay_ms: int, delay: DelayView | None, now_ms: int) -> LevelView:
    if delay is None or delay.next_due_ms is None:
        return LevelView(level, delay_ms, 0, None, 0)
    lag_ms = max(0, now_ms - delay.next_due_ms)
    return LevelView(level, delay_ms, delay.waiting, delay.next_due_ms, lag_ms)


@dataclass(frozen=True, slots=True)
class Status:
    now_ms: int
    pending: int
    sent: int
    released: int
    cancelled: int
    swept: int  # due messages that were forgotten, found by a sweep and released
    near: int
    ready: int
    backlog: int
    open_transactions: int
    in_flight_bytes: int  # bodies of sends that are not answered yet
    lateness_ms: LatenessSummary
    pipeline: PipelineView
    clock_leaps: int
    log_bytes: int
    disk_space: DiskSpaceView
    damage: DamageCounts  # of the commit log, as far as it is known
    levels: list[LevelView]
    clamped_levels: dict[str, int]  # by topic: messages whose level was above the highest, since the start
    holds: HoldsState
    waits: list[WaitView]
    overdue: list[OverdueView]
    health: HealthView


def status_of(
    store: MessageStore,
    releaser: Releaser,
    timer_controller: TimerController,
    sender: SendService,
    guard: ClockGuard,
    *,
    settings: BrokerSettings,
    clock: Clock,
    health: Health,
) -> Status:
    now_ms, sample = clock.now_ms(), sample_of(store, releaser.lateness)
    waits = wait_views(store, releaser, timer_controller, guard, now_ms, clock.boot_ms())
    return Status(
        now_ms=now_ms,
        pending=sample.pending,
        sent=sample.sent,
        released=sample.released,
        cancelled=sample.cancelled,
        swept=releaser.sweeper.swept_count,
        near=releaser.near_count,
        ready=releaser.ready_count,
        backlog=releaser.backlogs.count,
        open_transactions=len(store.open_transactions),
        in_flight_bytes=sender.in_flight_bytes,
        lateness_ms=releaser.lateness.summary(),
        pipeline=timer_controller.view(now_ms),
        clock_leaps=guard.leap_count,
        log_bytes=store.log.written_end - store.log.head,
        disk_space=store.disk_space.view(),
        damage=damage_counts(store),
        levels=level_views(store, settings, now_ms),
        clamped_levels=sender.clamped_levels.counts(),
        holds=timer_controller.holds.state,
        waits=waits,
        overdue=overdue_views(store, releaser, waits, now_ms),
        health=health.view(),
    )
