"""The administration by HTTP: topics, groups, holds, the simulated clock, backups.

Translates between the API's models and the broker's values, nothing more, and owns where a backup may be
written: it creates files as the broker's own user. With `--backup-dir` nothing is written outside that
directory, whatever dots or links a name contains. Without it, any new directory is allowed while only this
machine can call; otherwise none. All run in the server's thread pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter

from tidemill.broker.backup import CopyProgress, back_up
from tidemill.broker.broker import Broker
from tidemill.core.addresses import is_this_machine
from tidemill.core.errors import RequestError
from tidemill.server.http.http_models import (
    AdvancedOut,
    AdvanceIn,
    BackupIn,
    BackupOut,
    CopyingOut,
    DeletedOut,
    DoneOut,
    GroupIn,
    GroupListOut,
    GroupOut,
    LimitIn,
    Name,
    ResetIn,
    TopicIn,
    TopicListOut,
    TopicOut,
)
from tidemill.server.http.view_models import HoldsOut
from tidemill.server.process.serve_plan import ServePlan
from tidemill.server.security.caller import ADMIN, LOOK, may, may_compare, require, require_on


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """The directory set aside, if there is one, and whether others than this machine can call."""

    root: Path | None = None
    is_reachable: bool = False

    @classmethod
    def of(cls, plan: ServePlan) -> BackupPlace:
        """Where backups go by a plan."""
        return cls(Path(plan.backup_dir) if plan.backup_dir else None, not is_this_machine(plan.host))

    def target(self, asked: str) -> Path:
        """The requested directory; `RequestError` where it is not allowed."""
        if "\0" in asked:
            raise RequestError("the name of a directory has no NUL character; name another")
        if self.root is None:
            if self.is_reachable:
                raise RequestError(
                    "this broker writes no backups for callers from elsewhere; "
                    "serve with --backup-dir DIR, and name a directory within it"
                )
            return Path(asked)
        root = self.root.resolve()
        target = (root / asked).resolve()  # an absolute name stands for itself
        if root not in target.parents:
            raise RequestError(f"backups go below {root}; name a directory there")
        return target


def topic_routes(broker: Broker) -> APIRouter:
    """Routes that make, change and delete topics."""
    routes = APIRouter(prefix="/v1", tags=["topics"])

    @routes.get("/topics", response_model=TopicListOut)
    def topics() -> TopicListOut:
        """The topics that the caller may look at."""
        views = [view for view in broker.views.topics() if may(LOOK, topic=view.name)]
        return TopicListOut(topics=list(map(TopicOut.of, views)))

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


def operation_routes(broker: Broker, place: BackupPlace) -> APIRouter:
    """Routes that hold releases, move the clock and copy the directory."""
    routes = APIRouter(prefix="/v1", tags=["operations"])
    copying = CopyProgress()

    @routes.post("/holds/{what}/hold", response_model=HoldsOut)
    def hold(what: str) -> HoldsOut:
        """Hold `releases` (nothing timed is put into its topic) or `absorbing` (the timer takes in no new
        entries), also over restarts. Sends, cancels and moves go on. Held already is no error."""
        require_on(ADMIN, None)
        return HoldsOut.of(broker.switches.hold(what))

    @routes.post("/holds/{what}/resume", response_model=HoldsOut)
    def resume(what: str) -> HoldsOut:
        """End a hold of `releases` or `absorbing`; what fell due meanwhile goes at once."""
        require_on(ADMIN, None)
        return HoldsOut.of(broker.switches.resume(what))

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
        return BackupOut.of(back_up(broker, place.target(request.directory), copying))

    @routes.get("/backup", response_model=CopyingOut)
    def backup_progress() -> CopyingOut:
        """How far the backup under way is; both are 0 while there is none."""
        require_on(ADMIN, None)
        return CopyingOut.of(copying)

    return routes


# -- answers --------------------------------------------------------------------------------------


def _topic_named(broker: Broker, name: str) -> TopicOut:
    broker.topics.require(name)
    return next(TopicOut.of(view) for view in broker.views.topics() if view.name == name)


def _groups_out(broker: Broker) -> list[GroupOut]:
    return [
        GroupOut.of(view, lag=_seen(view.name, view.lag), unsettled=_seen(view.name, view.unsettled))
        for view in broker.views.groups()
    ]


def _seen(group: str, by_topic: Mapping[str, int]) -> dict[str, int]:
    """A group's counts in the topics that the caller may look at."""
    return {topic: count for topic, count in by_topic.items() if may_compare(group, topic)}
