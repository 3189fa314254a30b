"""The admin API's queries and administration: pending, forecast, status, topics, groups, clock, backup.

Translates between the API's models and the broker's values, nothing more. All run in the server's thread
pool.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from tidemill.broker.backup import BackupReport, CopyProgress, back_up
from tidemill.broker.broker import Broker
from tidemill.broker.query.message_history import FoundMessage
from tidemill.broker.query.views import TopicView
from tidemill.core.errors import RequestError
from tidemill.core.limits import ANSWER_BYTES_MAX, HORIZON_MS_MAX, QUEUES_PER_TOPIC_MAX
from tidemill.core.model import NO_TIME_MS
from tidemill.server.http.backup_place import BackupPlace
from tidemill.server.http.damage_models import DamageOut
from tidemill.server.http.http_figures import overdue_out
from tidemill.server.http.http_holds import holds_out
from tidemill.server.http.http_messages import body_out
from tidemill.server.http.http_models import (
    LOOK_COUNT_MAX,
    AdvancedOut,
    AdvanceIn,
    BackupIn,
    BackupOut,
    CopyingOut,
    DeletedOut,
    DoneOut,
    ForecastOut,
    FoundListOut,
    FoundOut,
    GroupIn,
    GroupListOut,
    GroupOut,
    Key,
    LimitIn,
    MinuteOut,
    Moment,
    Name,
    PendingListOut,
    PendingOut,
    ResetIn,
    TopicIn,
    TopicListOut,
    TopicOut,
)
from tidemill.server.http.status_models import (
    DiskOut,
    HealthOut,
    LatenessOut,
    LevelOut,
    PipelineOut,
    StatusOut,
    WaitOut,
)
from tidemill.server.response_budget import BodiesRoute, reserve
from tidemill.server.security.caller import ADMIN, LOOK, may, may_compare, require, require_on

_FOREVER_MS = 1 << 52
_OFFSET_MAX = 1 << 48

Count = Annotated[int, Query(ge=1, le=LOOK_COUNT_MAX)]


def look_routes(broker: Broker) -> APIRouter:
    """Routes that only look."""
    routes = APIRouter(prefix="/v1", tags=["looks"])

    @routes.get("/pending", response_model=PendingListOut)
    def pending(
        topic: Name | None = None,
        key: Key | None = None,
        from_ms: Moment = 0,
        to_ms: Moment = _FOREVER_MS,
        limit: Count = 100,
    ) -> PendingListOut:
        """Messages that wait, earliest due first."""
        require_on(LOOK, topic)
        found = broker.views.pending(topic_name=topic, key=key, from_ms=from_ms, to_ms=to_ms, limit=limit)
        rows = [
            PendingOut(
                message_id=p.id,
                topic=p.topic,
                keys=list(p.keys),
                tag=p.tag,
                stored_at_ms=p.stored_at_ms,
                deliver_at_ms=p.deliver_at_ms,
                size=p.size,
                handle=str(p.handle),
                is_damaged=p.is_damaged,
                body_bytes=p.body_bytes,
            )
            for p in found
        ]
        return PendingListOut(now_ms=broker.clock.now_ms(), pending=rows)

    @routes.get("/forecast", response_model=ForecastOut)
    def forecast(
        topic: Name | None = None, horizon_ms: Annotated[int, Query(ge=1, le=HORIZON_MS_MAX)] = 3_600_000
    ) -> ForecastOut:
        """How many messages fall due in each minute; overdue ones count in the first."""
        require_on(LOOK, topic)
        minutes = broker.views.forecast(topic_name=topic, horizon_ms=horizon_ms)
        rows = [MinuteOut(from_ms=from_ms, due=due) for from_ms, due in minutes]
        return ForecastOut(now_ms=broker.clock.now_ms(), minutes=rows)

    @routes.get("/status", response_model=StatusOut)
    def status() -> StatusOut:
        """How the broker is."""
        require(LOOK)
        return status_out(broker)

    return routes


def find_routes(broker: Broker) -> APIRouter:
    """Routes that find messages, whatever became of them."""
    routes = APIRouter(prefix="/v1", tags=["looks"], route_class=BodiesRoute)

    @routes.get("/topics/{name}/find", response_model=FoundListOut)
    def find(name: Name, key: Key) -> FoundListOut:
        """Messages with a key and what became of each, newest first, up to 16 MiB."""
        require(LOOK, topic=name)
        found = broker.views.find(name, key, bytes_max=ANSWER_BYTES_MAX, count_max=LOOK_COUNT_MAX)
        reserve(one.message.body for one in found)
        return FoundListOut(messages=[_found_out(one) for one in found])

    @routes.get("/topics/{name}/read", response_model=FoundListOut)
    def read(
        name: Name,
        queue: Annotated[int, Query(ge=0, lt=QUEUES_PER_TOPIC_MAX)] = 0,
        offset: Annotated[int, Query(ge=0, le=_OFFSET_MAX)] = 0,
        count: Count = 32,
    ) -> FoundListOut:
        """Messages of a queue by offset, without taking them, up to 16 MiB."""
        require(LOOK, topic=name)
        topic = broker.topics.require(name)
        if queue >= topic.queue_count:
            raise RequestError(f"topic {name!r} has {topic.queue_count} queues, the first is 0")
        found = broker.views.read(name, queue, offset, count, bytes_max=ANSWER_BYTES_MAX)
        reserve(q.message.body for q in found)
        rows = [
            _found_out(
                FoundMessage(
                    q.message, "released", q.queue_id, q.offset, q.released_at_ms, is_damaged=q.is_damaged
                )
            )
            for q in found
        ]
        return FoundListOut(messages=rows)

    return routes


def topic_routes(broker: Broker) -> APIRouter:
    """Routes that make, change and delete topics."""
    routes = APIRouter(prefix="/v1", tags=["topics"])

    @routes.get("/topics", response_model=TopicListOut)
    def topics() -> TopicListOut:
        """The topics that the caller may look at."""
        views = [view for view in broker.views.topics() if may(LOOK, topic=view.name)]
        return TopicListOut(topics=[_topic_out(view) for view in views])

    @routes.post("/topics", response_model=TopicOut)
    def create(request: TopicIn) -> TopicOut:
        """Make a topic; the same again is no error."""
        require(ADMIN, topic=request.name)
        broker.topics.create(request.name, request.type, request.queues)
        return _topic_named(broker, request.name)

    @routes.delete("/topics/{name}", response_model=DeletedOut)
    def delete(name: Name, force: bool = False) -> DeletedOut:
        """Delete a topic; refused while messages wait for it, unless forced: then they are cancelled."""
        require(ADMIN, topic=name)
        return DeletedOut(cancelled=broker.topics.delete(name, is_forced=force))

    @routes.post("/topics/{name}/pause", response_model=TopicOut)
    def pause(name: Name) -> TopicOut:
        """Hold the topic's releases; what falls due meanwhile goes when it is resumed."""
        require(ADMIN, topic=name)
        broker.topics.change(name, is_paused=True)
        return _topic_named(broker, name)

    @routes.post("/topics/{name}/resume", response_model=TopicOut)
    def resume(name: Name) -> TopicOut:
        require(ADMIN, topic=name)
        broker.topics.change(name, is_paused=False)
        return _topic_named(broker, name)

    @routes.post("/topics/{name}/limit", response_model=TopicOut)
    def limit(name: Name, request: LimitIn) -> TopicOut:
        """Bound the topic's releases a second."""
        require(ADMIN, topic=name)
        broker.topics.change(name, release_rate_max=request.per_second)
        return _topic_named(broker, name)

    return routes


def group_routes(broker: Broker) -> APIRouter:
    """Routes for consumer groups."""
    routes = APIRouter(prefix="/v1", tags=["groups"])

    @routes.get("/groups", response_model=GroupListOut)
    def groups() -> GroupListOut:
        """The groups that the caller may look at."""
        return GroupListOut(groups=[group for group in _groups_out(broker) if may(LOOK, group=group.name)])

    @routes.put("/groups/{name}", response_model=GroupOut)
    def set_group(name: Name, request: GroupIn) -> GroupOut:
        """Make a group or change its settings."""
        require(ADMIN, group=name)
        starts_first = None if request.start is None else request.start == "first"
        broker.receiver.set_group(
            name,
            attempts_max=request.max_attempts,
            is_fifo=request.is_fifo,
            starts_first=starts_first,
            backoff=request.backoff,
        )
        return next(group for group in _groups_out(broker) if group.name == name)

    @routes.post("/groups/{name}/reset", response_model=DoneOut)
    def reset(name: Name, request: ResetIn) -> DoneOut:
        """Let a group read a topic again from (or skip it to) the messages released at a time."""
        require(ADMIN, topic=request.topic, group=name)
        broker.receiver.reset(name, request.topic, request.to_ms)
        broker.store.notifier.announce()
        return DoneOut()

    return routes


def lever_routes(broker: Broker, place: BackupPlace) -> APIRouter:
    """Routes that move the clock and copy the directory."""
    routes = APIRouter(prefix="/v1", tags=["levers"])
    copying = CopyProgress()

    @routes.post("/clock/advance", response_model=AdvancedOut)
    def advance(request: AdvanceIn) -> AdvancedOut:
        """Move a simulated clock; answers when everything due by then is in its topic, or is held."""
        require_on(ADMIN, None)
        if (request.by_ms is None) == (request.to_ms is None):
            raise RequestError("give either by_ms or to_ms")
        if not broker.clock.is_simulated:
            raise RequestError("only a simulated clock can be moved; start with --clock simulated")
        now_ms = broker.clock.now_ms()
        broker.advance_to(request.to_ms if request.to_ms is not None else now_ms + (request.by_ms or 0))
        return AdvancedOut(now_ms=broker.clock.now_ms())

    @routes.post("/backup", response_model=BackupOut)
    def backup(request: BackupIn) -> BackupOut:
        """Copy the live broker, as it is at one moment, into a new directory on the broker's machine."""
        require_on(ADMIN, None)
        report: BackupReport = back_up(broker, place.target(request.directory), copying)
        return BackupOut(
            directory=str(report.directory),
            log_end=report.log_end,
            files=report.file_count,
            bytes=report.byte_count,
            pending=report.pending,
        )

    @routes.get("/backup", response_model=CopyingOut)
    def backup_progress() -> CopyingOut:
        """How far the backup under way is; both are 0 while there is none."""
        require_on(ADMIN, None)
        return CopyingOut(done_bytes=copying.done, total_bytes=copying.total)

    return routes


# -- shapes ---------------------------------------------------------------------------------------


def status_out(broker: Broker) -> StatusOut:
    status = broker.status()
    late = status.lateness_ms
    return StatusOut(
        broker=broker.id,
        now_ms=status.now_ms,
        is_clock_simulated=broker.clock.is_simulated,
        pending=status.pending,
        sent=status.sent,
        released=status.released,
        cancelled=status.cancelled,
        swept=status.swept,
        near=status.near,
        ready=status.ready,
        backlog=status.backlog,
        open_transactions=status.open_transactions,
        lateness_ms=LatenessOut(count=late.count, p50=late.p50_ms, p99=late.p99_ms, max=late.max_ms),
        pipeline=PipelineOut(
            runner=status.pipeline.runner,
            store=status.pipeline.store,
            state=status.pipeline.state,
            lag_ms=status.pipeline.lag_ms,
            takeovers=status.pipeline.takeovers,
            since_ms=status.pipeline.since_ms,
            problem=status.pipeline.problem,
        ),
        clock_leaps=status.clock_leaps,
        disk=DiskOut(
            log_bytes=status.log_bytes,
            free_bytes=status.disk_space.free_bytes,
            is_full=status.disk_space.is_full,
            is_low=status.disk_space.is_low,
            size_bytes=status.disk_space.total_bytes,
            warn_below_bytes=status.disk_space.warn_below_bytes,
            refuse_below_bytes=status.disk_space.refuse_below_bytes,
        ),
        damage=DamageOut(**asdict(status.damage)),
        levels=[LevelOut(**asdict(level)) for level in status.levels],
        holds=holds_out(status.holds),
        waits=[
            WaitOut(
                waits_for=wait.waits_for,
                topic=wait.topic if may(LOOK, topic=wait.topic) else "",
                messages=wait.messages,
            )
            for wait in status.waits
        ],
        overdue=[overdue_out(view) for view in status.overdue],
        health=HealthOut(
            state=status.health.state, reason=status.health.reason, last_fault=status.health.last_fault
        ),
    )


def _topic_out(view: TopicView) -> TopicOut:
    return TopicOut(
        name=view.name,
        type=view.type,
        queues=view.queue_count,
        is_paused=view.is_paused,
        release_rate_max=view.release_rate_max,
        pending=view.pending,
        sent=view.sent,
        released=view.released,
        cancelled=view.cancelled,
        visible=view.visible,
    )


def _topic_named(broker: Broker, name: str) -> TopicOut:
    broker.topics.require(name)
    return next(_topic_out(view) for view in broker.views.topics() if view.name == name)


def _groups_out(broker: Broker) -> list[GroupOut]:
    return [
        GroupOut(
            name=view.name,
            max_attempts=view.attempts_max,
            is_fifo=view.is_fifo,
            backoff=view.backoff,
            lag=_seen(view.name, view.lag),
            unsettled=_seen(view.name, view.unsettled),
        )
        for view in broker.views.groups()
    ]


def _seen(group: str, by_topic: dict[str, int]) -> dict[str, int]:
    """A group's counts in the topics that the caller may look at."""
    return {topic: count for topic, count in by_topic.items() if may_compare(group, topic)}


def _found_out(found: FoundMessage) -> FoundOut:
    message = found.message
    text, encoded = body_out(message.body)
    return FoundOut(
        message_id=message.id,
        body=text,
        body_base64=encoded,
        keys=list(message.keys),
        tag=message.tag,
        properties=dict(message.properties),
        stored_at_ms=message.stored_at_ms,
        deliver_at_ms=None if message.deliver_at_ms == NO_TIME_MS else message.deliver_at_ms,
        state=found.state,
        queue=found.queue_id,
        offset=found.offset,
        released_at_ms=found.released_at_ms,
        is_damaged=found.is_damaged,
    )
