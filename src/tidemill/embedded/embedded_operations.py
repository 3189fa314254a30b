"""The operations of `client.operations.Operations`, answered by a broker in this process.

Owns the translation from the broker's values to a client's. Every operation that travels by HTTP there is
answered here; a test holds both sets equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from tidemill.broker.backup import CopyProgress, back_up
from tidemill.broker.broker import Broker
from tidemill.broker.change.canceller import To
from tidemill.broker.query.damage_views import damage_views
from tidemill.broker.query.message_history import MessageView
from tidemill.client.operations import Carrier, Operations
from tidemill.core.answers import (
    Backup,
    BrokerStatus,
    DamagedMessage,
    DeadLetter,
    FoundMessage,
    GroupInfo,
    Holds,
    Message,
    Minute,
    Moved,
    NackResult,
    PendingMessage,
    TopicInfo,
)
from tidemill.core.errors import RequestError
from tidemill.core.holds import Held
from tidemill.core.model import NO_TIME_MS, CancelAnswer, Delivery, Handle, TopicType
from tidemill.core.property_names import split_properties
from tidemill.core.request_ids import request_key

T = TypeVar("T")
_FOREVER_MS = 1 << 52


class EmbeddedOperations(Operations):
    """The operations of an embedded broker."""

    def __init__(self, broker: Broker, carrier: Carrier) -> None:
        super().__init__(carrier)
        self._broker = broker
        self._copying = CopyProgress()

    # -- consuming --------------------------------------------------------------------------------

    async def receive(
        self,
        topic: str,
        group: str,
        count: int,
        wait_ms: int,
        lease_ms: int,
        tags: Sequence[str] | None,
        one_per_message_group: bool = False,
    ) -> list[Message]:
        wanted = None if tags is None else frozenset(tags)
        found = self._broker.receive(
            topic,
            group,
            count=count,
            wait_ms=wait_ms,
            invisible_ms=lease_ms,
            accepts_tag=None if wanted is None else wanted.__contains__,
            one_per_message_group=one_per_message_group,
        )
        return list(map(_message, found))

    async def ack(self, ack_tokens: Sequence[str]) -> list[bool]:
        return self._broker.ack(ack_tokens)

    async def extend(self, ack_tokens: Sequence[str], lease_ms: int) -> list[bool]:
        return self._broker.change_invisibility(ack_tokens, lease_ms)

    async def requeue(self, ack_tokens: Sequence[str]) -> list[bool]:
        return self._broker.change_invisibility(ack_tokens, 0, is_untried=True)

    async def nack(
        self, ack_tokens: Sequence[str], delay_ms: int | None, level: int | None
    ) -> list[NackResult]:
        retried = (
            self._broker.retry(ack_tokens, delay_ms)
            if level is None
            else self._broker.send_back(ack_tokens, level)
        )
        return [replace(result, answer=str(result.answer)) for result in retried]

    async def dead_letter(self, ack_tokens: Sequence[str]) -> list[bool]:
        return self._broker.dead_letter(ack_tokens)

    # -- cancel and reschedule --------------------------------------------------------------------

    async def cancel(self, handles: Sequence[Handle], request_id: str) -> list[CancelAnswer]:
        return self._broker.cancel(handles, request_id=request_key(request_id))

    async def cancel_where(self, topic: str, where: Mapping[str, Any], request_id: str) -> int:
        return self._broker.cancel_where(topic, **where, request_id=request_key(request_id))

    async def reschedule(
        self, handles: Sequence[Handle], to: Mapping[str, int], request_id: str
    ) -> list[Moved]:
        return self._broker.reschedule(handles, request_id=request_key(request_id), **_to(to))

    async def reschedule_where(
        self, topic: str, where: Mapping[str, Any], to: Mapping[str, int], request_id: str
    ) -> int:
        key = request_key(request_id)
        return self._broker.reschedule_where(topic, **where, request_id=key, **_to(to))

    # -- looking ----------------------------------------------------------------------------------

    async def pending(
        self, topic: str | None, key: str | None, from_ms: int | None, to_ms: int | None, limit: int
    ) -> list[PendingMessage]:
        return self._broker.views.pending(
            topic_name=topic,
            key=key,
            from_ms=0 if from_ms is None else from_ms,
            to_ms=_FOREVER_MS if to_ms is None else to_ms,
            limit=limit,
        )

    async def find(self, topic: str, key: str) -> list[FoundMessage]:
        return [_found(topic, view) for view in self._broker.views.find(topic, key)]

    async def forecast(self, topic: str | None, horizon_ms: int) -> list[Minute]:
        return self._broker.views.forecast(topic_name=topic, horizon_ms=horizon_ms)

    async def status(self) -> BrokerStatus:
        status = self._broker.status()
        late = status.lateness_ms
        return _filled(
            BrokerStatus,
            status,
            runner=status.pipeline.runner,
            lateness_p50_ms=late.p50_ms,
            lateness_p99_ms=late.p99_ms,
            lateness_max_ms=late.max_ms,
            fields=asdict(status),
        )

    async def damaged(self, limit: int) -> list[DamagedMessage]:
        return damage_views(self._broker.store, self._broker.id, limit)

    # -- topics, groups, dead letters -------------------------------------------------------------

    async def topics(self) -> list[TopicInfo]:
        return self._broker.views.topics()

    async def create_topic(self, name: str, topic_type: TopicType, queues: int | None) -> TopicInfo:
        self._broker.topics.create(name, topic_type, queues)
        return self._topic_named(name)

    async def delete_topic(self, name: str, force: bool) -> int:
        return self._broker.topics.delete(name, is_forced=force)

    async def pause_topic(self, name: str) -> TopicInfo:
        self._broker.topics.change(name, is_paused=True)
        return self._topic_named(name)

    async def resume_topic(self, name: str) -> TopicInfo:
        self._broker.topics.change(name, is_paused=False)
        return self._topic_named(name)

    async def limit_topic(self, name: str, per_second: int) -> TopicInfo:
        self._broker.topics.change(name, release_rate_max=per_second)
        return self._topic_named(name)

    def _topic_named(self, name: str) -> TopicInfo:
        return next(topic for topic in self._broker.views.topics() if topic.name == name)

    async def groups(self) -> list[GroupInfo]:
        return self._broker.views.groups()

    async def set_group(self, name: str, settings: Mapping[str, Any]) -> GroupInfo:
        start = settings.get("start")
        self._broker.receiver.set_group(
            name,
            attempts_max=settings.get("max_attempts"),
            is_fifo=settings.get("is_fifo"),
            starts_first=None if start is None else start == "first",
            backoff=settings.get("backoff"),
        )
        return next(group for group in await self.groups() if group.name == name)

    async def reset_group(self, name: str, topic: str, to_ms: int) -> None:
        self._broker.receiver.reset(name, topic, to_ms)
        self._broker.store.notifier.announce()

    async def dead_letters(self, group: str | None, limit: int) -> list[DeadLetter]:
        letters = self._broker.dead_letters
        names = letters.groups() if group is None else [group]
        found = [letter for name in names for letter in letters.waiting(name, limit=limit)]
        found.sort(key=lambda letter: letter.died_at_ms)
        answers = []
        for letter in found[:limit]:
            message = letter.message
            own, added = split_properties(message.properties)
            answers.append(_filled(DeadLetter, letter, message, properties=own, broker_properties=added))
        return answers

    async def resend_dead_letters(self, group: str, ids: Sequence[str] | None) -> int:
        return self._broker.dead_letters.resend(group, ids)

    # -- the broker as a whole --------------------------------------------------------------------

    async def hold(self, what: Held) -> Holds:
        state = self._broker.switches.hold(what)
        return Holds(state.releases_since_ms, state.absorbing_since_ms)

    async def resume(self, what: Held) -> Holds:
        state = self._broker.switches.resume(what)
        return Holds(state.releases_since_ms, state.absorbing_since_ms)

    async def advance(self, by_ms: int | None, to_ms: int | None) -> int:
        clock = self._broker.clock
        if (by_ms is None) == (to_ms is None):
            raise RequestError("give either by or to")
        if not clock.is_simulated:
            raise RequestError("only a simulated clock can be moved; open with clock=SimulatedClock(...)")
        self._broker.advance_to(to_ms if to_ms is not None else clock.now_ms() + (by_ms or 0))
        return clock.now_ms()

    async def backup(self, directory: str) -> Backup:
        return back_up(self._broker, Path(directory), self._copying)

    async def backup_progress(self) -> tuple[int, int]:
        return self._copying.done, self._copying.total


def _filled(kind: type[T], *views: object, **more: object) -> T:
    """A value from attributes of the same names: `more` first, then the views in order."""
    for field in fields(kind):  # type: ignore[arg-type]
        for view in views:
            if field.name not in more and hasattr(view, field.name):
                more[field.name] = getattr(view, field.name)
    return kind(**more)


def _time(ms: int) -> int | None:
    return None if ms == NO_TIME_MS else ms


def _to(to: Mapping[str, int]) -> To:
    return cast(To, to)


def _found(topic: str, view: MessageView) -> FoundMessage:
    message = view.message
    own, added = split_properties(message.properties)
    return _filled(
        FoundMessage,
        view,
        message,
        topic=topic,
        properties=own,
        broker_properties=added,
        deliver_at_ms=_time(message.deliver_at_ms),
        queue=view.queue_id,
    )


def _message(delivery: Delivery) -> Message:
    message = delivery.message
    own, added = split_properties(message.properties)
    return Message(
        id=message.id,
        topic=delivery.topic,
        body=message.body,
        ack_token=delivery.ack_token,
        attempt=delivery.attempt,
        keys=message.keys,
        tag=message.tag,
        message_group=message.message_group,
        properties=own,
        queue=delivery.queue_id,
        offset=delivery.offset,
        born_at_ms=message.born_at_ms,
        stored_at_ms=message.stored_at_ms,
        deliver_at_ms=_time(message.deliver_at_ms),
        released_at_ms=delivery.released_at_ms,
        lease_until_ms=delivery.invisible_until_ms,
        via=delivery.via.name.lower(),
        rolls=delivery.rolls,
        broker_properties=added,
    )
