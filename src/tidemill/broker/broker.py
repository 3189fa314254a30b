"""The broker: opens a data directory, runs its services, offers the verbs, and closes it in order.

Owns lifecycle and wiring; every verb is one line here and lives in a module of its own (sender, bulk,
canceller, receiver, transactions, views, topic_admin). With `has_threads=False` nothing runs by itself:
`run_due` takes the steps, which is how tests and simulations drive the very same broker.

Order of opening: lock, identity, store (recovery), timer, releaser, services. Closing is the reverse.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Unpack

import pyarrow as pa

from tidemill.broker.change.canceller import Canceller, Chosen, NewTime, To, Where
from tidemill.broker.change.requests import RequestId
from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.change.transactions import Transactions
from tidemill.broker.consume.acks import Acks
from tidemill.broker.consume.dead_letters import DeadLetters
from tidemill.broker.consume.long_poll import LongPoll
from tidemill.broker.consume.receiver import Receiver, TagFilter
from tidemill.broker.consume.retries import Retries
from tidemill.broker.control.holds import Holds
from tidemill.broker.control.pipeline_process import PipelineProcess
from tidemill.broker.control.simulated_time import SimulatedTime
from tidemill.broker.control.switches import Switches
from tidemill.broker.control.timer_controller import TimerController
from tidemill.broker.health import Health
from tidemill.broker.identity import broker_id_of, require_usable
from tidemill.broker.level_table import with_level_table
from tidemill.broker.loop import Service
from tidemill.broker.maintenance import Maintenance
from tidemill.broker.query.metrics_history import MetricsHistory, sample_of
from tidemill.broker.query.status import Status, status_of
from tidemill.broker.query.table_views import TableViews
from tidemill.broker.query.views import CloseReport, Views
from tidemill.broker.send.answers import Answer, Answers, TableResult
from tidemill.broker.send.service import SendService
from tidemill.broker.sizes import Sizes as Sizes
from tidemill.core.answers import Moved, NackResult
from tidemill.core.arguments import require_whole
from tidemill.core.clock import Clock, SystemClock, machine_ms
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import BrokerClosedError, DiskFullError, RequestError
from tidemill.core.model import SEQ_MAX, CancelAnswer, Delivery, Draft, Handle, SendResult
from tidemill.core.send_batch import SendColumns
from tidemill.log.arrays import I64, U8
from tidemill.log.disk import Disk, RealDisk
from tidemill.release.clock_guard import ClockGuard
from tidemill.release.ready_reader import ReadyReader
from tidemill.release.releaser import Releaser
from tidemill.store.check import check_store
from tidemill.store.disk_space import too_small
from tidemill.store.indexes import IndexSizes
from tidemill.store.message_store import MessageStore, StoreSettings
from tidemill.store.recovery import Progress
from tidemill.timer.settings import StepLimits, TimerSettings

_SYNC_EVERY_MS = 100


class Broker:
    """An open broker. Thread-safe; use as a context manager or call `close`."""

    def __init__(
        self,
        directory: Path,
        settings: BrokerSettings | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        has_threads: bool = True,
        sizes: Sizes | None = None,
        on_progress: Progress | None = None,
        pipeline_command: Sequence[str] = (),
        pipeline_problem: str = "",
        last_fault: str = "",
        owner_pid: int = 0,
    ) -> None:
        self.settings = settings or BrokerSettings()
        self.clock: Clock = clock or SystemClock()
        self.disk: Disk = disk or RealDisk()
        self.health = Health(last_fault=last_fault)
        self._is_closed = False
        self._has_threads = has_threads
        self._pipeline_problem = pipeline_problem  # why there is none, for the status
        sizes = sizes or Sizes()
        require_usable(self.disk, directory)
        self.disk.make_dir(directory)
        self.directory = directory
        self._lock = self.disk.lock(directory / "LOCK", f"process {owner_pid or os.getpid()}")
        try:
            self._open(sizes, on_progress, pipeline_command)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, DiskFullError):
                raise too_small(error, self.settings.segment_bytes) from error
            raise
        self.health.when_stopped(self.store.notifier.announce)
        if has_threads:
            for service in self._services:
                service.start()

    def _open(self, sizes: Sizes, on_progress: Progress | None, pipeline_command: Sequence[str]) -> None:
        self.id = broker_id_of(self.disk, self.directory)
        settings, now_ms = with_level_table(self.settings, self.disk, self.directory), self.clock.now_ms
        self.settings = settings
        store_settings = sizes.store or StoreSettings(
            segment_bytes=settings.segment_bytes,
            commits_in_flight=settings.commits_in_flight,
            is_sync=settings.durability == "sync",
            retention_ms=settings.retention_ms,
            sizes=IndexSizes(),
        )
        self.store = MessageStore(self.disk, self.directory, store_settings, on_progress, self.health.stop)
        timer_settings = sizes.timer or TimerSettings.of(settings)
        pipeline = PipelineProcess(pipeline_command, self.directory / "spark.log", machine_ms)
        self._timer = TimerController(
            self.disk,
            self.store,
            settings,
            timer_settings,
            sizes.limits or StepLimits(),
            now_ms=now_ms,
            machine_ms=machine_ms,
            wake=lambda: self._turn_service.wake(),
            pipeline=pipeline if pipeline_command else None,
            pipeline_problem=self._pipeline_problem,
            holds=Holds(self.disk, self.directory),
        )
        self.wheel, self.steps, self.figures = self._timer.wheel, self._timer.steps, self._timer.figures
        self.releaser = self._make_releaser(sizes.release_rows_max)
        self._guard = ClockGuard(self.clock.is_simulated)
        service = partial(
            Service, clock=self.clock, make_room=self.store.ballast.throw_some, health=self.health
        )
        self._release_service = service("releaser", self._release_step)
        self._turn_service = service("timer", self._turn_step)
        services = {"release_service": self._release_service, "turn_service": self._turn_service}
        self.switches = Switches(self._timer.holds, self._timer, self.health, now_ms, **services)
        self.releaser.recover()  # it may call for a step of the timer
        self.topics = TopicAdmin(self.store, settings, now_ms, self._release_service.wake)
        self._sender = SendService(
            self.store, self.topics, self.releaser, settings, self.id, now_ms, self._release_service.wake
        )
        parts = (self.store, self.topics, self._sender, settings, self.id, now_ms)
        self._canceller, self._transactions = Canceller(*parts), Transactions(*parts)
        self.receiver = Receiver(self.store, self.topics, now_ms)
        self._settler = Acks(self.store, self.receiver, now_ms)
        self._long_poll = LongPoll(self.receiver, self.store.notifier, self.clock, self.require_open)
        self.dead_letters = DeadLetters(self.store, self.topics, now_ms)
        self._retries = Retries(*parts, self._settler)
        self._views = Views(self.store, self.topics, self.id, now_ms, self.status)
        self.tables = TableViews(self.store, self.topics, self.id)
        self._maintenance = Maintenance(self.store, self._sender, settings, self.clock.boot_ms)
        self._keep_service = service("maintenance", self._maintenance.step)
        self.metrics_history = MetricsHistory(lambda: sample_of(self.store, self.releaser.lateness))
        history_service = service("pulse", self.metrics_history.step)
        self._services = [self._release_service, self._turn_service, self._keep_service, history_service]
        if settings.durability == "async":
            self._services.append(service("sync", self._sync_step))

    def _make_releaser(self, rows_max: int) -> Releaser:
        return Releaser(
            self.store,
            ReadyReader(self.disk, self._timer.timer_directory, self._timer.repair.note),
            clock=self.clock,
            look_at_shards=self._timer.look_at_shards,
            handed_over_ms=self._timer.handed_over_ms,
            has_threads=self._has_threads,
            wake=lambda: self._release_service.wake(),
            on_lost=self._timer.repair.note_lost,
            is_held=lambda: self._timer.holds.holds_releases,
            rows_max=rows_max,
        )

    # -- services ---------------------------------------------------------------------------------

    def _release_step(self, now_ms: int) -> int | None:
        hold_ms = self._guard.hold_ms(now_ms, self.clock.boot_ms())
        if hold_ms:
            return now_ms + hold_ms
        return self.releaser.step(now_ms)

    def _turn_step(self, now_ms: int) -> int:
        wake_ms = self._timer.step(now_ms, self.releaser)
        self._release_service.wake()
        return wake_ms

    def _sync_step(self, now_ms: int) -> int:
        self.store.finish_all()
        self.store.consumers.sync()
        return now_ms + _SYNC_EVERY_MS

    def run_due(self) -> int | None:
        """Take one step of every service now; returns when the first of them wants the next."""
        self._require_not_closed()
        wakes = [service.run_once() for service in (self._turn_service, *self._services)]
        return min((wake for wake in wakes if wake is not None), default=None)

    def advance_to(self, until_ms: int) -> None:
        """Move a simulated clock; returns when everything due by then is in its topic, or is held."""
        self._require_not_closed()
        require_whole("until_ms", until_ms, 0, SEQ_MAX)
        self.store.finish_all()  # the pipeline reads only what is safe, also where answers do not wait
        services = [self._release_service, self._turn_service, self._keep_service]
        SimulatedTime(self.clock, self._timer, self.releaser, services).advance_to(until_ms)

    @property
    def pipeline_pid(self) -> int | None:
        """The process that runs Spark, while there is one."""
        return self._timer.pipeline_pid

    def wake(self) -> None:
        """Make every service look again now."""
        for service in self._services:
            service.wake()

    def _require_not_closed(self) -> None:
        if self._is_closed:
            raise BrokerClosedError("the broker is closed")

    def require_open(self) -> None:
        """`BrokerClosedError` unless the broker takes requests."""
        self._require_not_closed()
        self.health.require_open()

    # -- the verbs --------------------------------------------------------------------------------

    def send(self, drafts: Sequence[Draft], *, creates_topics: bool = True) -> list[SendResult]:
        """Store all drafts durably, or none if one is wrong."""
        self.require_open()
        return self._sender.send(drafts, creates_topics=creates_topics)

    def send_each(self, drafts: Sequence[Draft], *, creates_topics: bool = True) -> list[Answer]:
        """Store the drafts that are right; each gets its own answer."""
        self.require_open()
        return self._sender.send_drafts(drafts, creates_topics=creates_topics)

    def send_columns(
        self, requests: Sequence[SendColumns], errors: Mapping[int, RequestError] | None = None
    ) -> list[Answers]:
        """Store what several requests in columns ask for; each gets the answers to its own messages.

        `errors`: of messages that are not to be stored, by their number.
        """
        self.require_open()
        return self._sender.send_columns(requests, errors)

    def send_table(self, table: pa.Table, *, topic: str | None = None, is_whole: bool = False) -> TableResult:
        """Store an Arrow table or batch durably; a batch `is_whole` in one frame, all of it or nothing."""
        self.require_open()
        return self._sender.send_whole(table, topic) if is_whole else self._sender.send_table(table, topic)

    def cancel(self, handles: Sequence[Handle], *, request_id: RequestId = None) -> list[CancelAnswer]:
        self.require_open()
        return self._canceller.cancel(handles, request_id)

    def cancel_rows(self, topics: pa.Array, ids: pa.Array, seqs: I64, *, request_id: RequestId = None) -> U8:
        self.require_open()
        return self._canceller.cancel_rows(topics, ids, seqs, request_id)

    def cancel_where(self, topic: str, *, request_id: RequestId = None, **chosen: Unpack[Chosen]) -> int:
        self.require_open()
        return self._canceller.cancel_where(Where(topic, **chosen), request_id)

    def reschedule(
        self, handles: Sequence[Handle], *, request_id: RequestId = None, **to: Unpack[To]
    ) -> list[Moved]:
        self.require_open()
        return self._canceller.reschedule(handles, NewTime(**to), request_id)

    def reschedule_where(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        request_id: RequestId = None,
        **to: Unpack[To],
    ) -> int:
        self.require_open()
        where = Where(topic, key, from_ms, to_ms)
        return self._canceller.reschedule_where(where, NewTime(**to), request_id)

    def receive(
        self,
        topic: str,
        group: str,
        *,
        count: int = 32,
        wait_ms: int = 0,
        invisible_ms: int = 30_000,
        accepts_tag: TagFilter | None = None,
        one_per_message_group: bool = False,
    ) -> list[Delivery]:
        """Take messages; waits up to `wait_ms` of real time for the first one, also on a simulated clock."""
        return self._long_poll.receive(
            topic,
            group,
            count=count,
            wait_ms=wait_ms,
            invisible_ms=invisible_ms,
            accepts_tag=accepts_tag,
            one_per_message_group=one_per_message_group,
        )

    def ack(self, ack_tokens: Sequence[str]) -> list[bool]:
        self.require_open()
        return self._settler.ack(ack_tokens)

    def change_invisibility(
        self, ack_tokens: Sequence[str], invisible_ms: int, *, is_untried: bool = False
    ) -> list[bool]:
        self.require_open()
        return self._settler.change_invisibility(ack_tokens, invisible_ms, is_untried=is_untried)

    def retry(self, ack_tokens: Sequence[str], delay_ms: int | None = None) -> list[NackResult]:
        """Let failed deliveries be tried again after their group's pause, or `delay_ms`."""
        self.require_open()
        return self._retries.retry(ack_tokens, delay_ms)

    def send_back(self, ack_tokens: Sequence[str], level: int = 0) -> list[NackResult]:
        """Give deliveries back, to come again after a level's delay; -1: to the dead letters."""
        self.require_open()
        return self._retries.send_back(ack_tokens, level)

    def dead_letter(self, ack_tokens: Sequence[str]) -> list[bool]:
        self.require_open()
        return self._retries.dead_letter(ack_tokens)

    @property
    def views(self) -> Views:
        self._require_not_closed()
        return self._views

    @property
    def transactions(self) -> Transactions:
        self.require_open()
        return self._transactions

    def status(self) -> Status:
        self._require_not_closed()
        return status_of(
            self.store,
            self.releaser,
            self._timer,
            self._sender,
            self._guard,
            settings=self.settings,
            clock=self.clock,
            health=self.health,
        )

    def check(self, scratch: Path, on_progress: Progress | None = None) -> list[str]:
        """Every invariant of the directory, checked; findings in words. No writer may be active."""
        self.store.finish_all()
        return [
            *check_store(self.store, RealDisk(), scratch, on_progress),
            *self._timer.check(),
        ]

    # -- closing ----------------------------------------------------------------------------------

    def close(self) -> CloseReport:
        """Stop the services, make everything safe, and say what is still waiting."""
        if self._is_closed:
            return CloseReport(0, None)
        self._is_closed = True
        for service in self._services:
            service.stop()
        self.releaser.close()
        self.store.notifier.announce()
        try:
            if self.health.fault is not None:  # what is in memory may be wrong: nothing of it is written
                self._timer.close()
                self.store.release_files()
                return CloseReport(0, None)
            report = self._views.close_report()
            self._timer.close()
            self.store.close()
            return report
        finally:
            self._lock.release()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
