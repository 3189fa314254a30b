"""Queries by HTTP: pending, found and damaged messages, one message, forecast, status, the current user.

Translates between the API's models and the broker's values, nothing more; every answer is bounded. All run in
the server's thread pool.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tidemill.broker.broker import Broker
from tidemill.broker.query.damage_views import damage_views
from tidemill.broker.query.message_history import MessageStory, MessageView
from tidemill.core.errors import RequestError, UnknownMessageError
from tidemill.core.limits import (
    ANSWER_BYTES_MAX,
    HORIZON_MS_MAX,
    KIB,
    LOOK_COUNT_MAX,
    MIB,
    QUEUES_PER_TOPIC_MAX,
)
from tidemill.core.model import Handle
from tidemill.core.property_names import split_properties
from tidemill.server.http.http_messages import body_out
from tidemill.server.http.http_models import Key, Moment, Name, Token
from tidemill.server.http.view_models import (
    DamagedListOut,
    DamagedOut,
    DiskOut,
    ForecastOut,
    FoundListOut,
    FoundOut,
    GroupPositionOut,
    MeOut,
    MessageOut,
    MinuteOut,
    OverdueOut,
    PendingListOut,
    PendingOut,
    StatusOut,
    WaitOut,
)
from tidemill.server.response_budget import BodiesRoute, reserve
from tidemill.server.security.caller import LOOK, caller, may, require, require_on
from tidemill.server.security.permissions import Verb
from tidemill.store.damaged_messages import damage_counts

FOREVER_MS = 1 << 52
_OFFSET_MAX = 1 << 48
_BODY_LIMIT = 64 * KIB
_BODY_LIMIT_MAX = 4 * MIB

Count = Annotated[int, Query(ge=1, le=LOOK_COUNT_MAX)]


def query_routes(broker: Broker) -> APIRouter:
    """Routes that only look."""
    routes = APIRouter(prefix="/v1", tags=["queries"])

    @routes.get("/pending", response_model=PendingListOut)
    def pending(
        topic: Name | None = None,
        key: Key | None = None,
        from_ms: Moment = 0,
        to_ms: Moment = FOREVER_MS,
        limit: Count = 100,
    ) -> PendingListOut:
        """Messages that wait, earliest due first."""
        require_on(LOOK, topic)
        found = broker.views.pending(topic_name=topic, key=key, from_ms=from_ms, to_ms=to_ms, limit=limit)
        return PendingListOut(now_ms=broker.clock.now_ms(), pending=list(map(PendingOut.of, found)))

    @routes.get("/forecast", response_model=ForecastOut)
    def forecast(
        topic: Name | None = None, horizon_ms: Annotated[int, Query(ge=1, le=HORIZON_MS_MAX)] = 3_600_000
    ) -> ForecastOut:
        """How many messages fall due in each minute; overdue ones count in the first."""
        require_on(LOOK, topic)
        minutes = broker.views.forecast(topic_name=topic, horizon_ms=horizon_ms)
        return ForecastOut(now_ms=broker.clock.now_ms(), minutes=list(map(MinuteOut.of, minutes)))

    @routes.get("/status", response_model=StatusOut)
    def status() -> StatusOut:
        """Counts, lateness, the timer, the disk, and what releases wait for."""
        require(LOOK)
        return _status_out(broker)

    @routes.get("/damaged", response_model=DamagedListOut)
    def damaged(limit: Count = 100) -> DamagedListOut:
        """Messages whose bytes in the commit log are damaged, as far as that was found since the start."""
        require(LOOK)
        views = damage_views(broker.store, broker.id, limit, lambda topic: may(LOOK, topic=topic))
        return DamagedListOut.of(damage_counts(broker.store), damaged=list(map(DamagedOut.of, views)))

    @routes.get("/me", response_model=MeOut)
    def me() -> MeOut:
        """Who the caller is here, and what it may do."""
        user = caller()
        return MeOut(
            now_ms=broker.clock.now_ms(),
            user=user.name if user is not None else None,
            may={verb.value: may(verb) for verb in Verb},
        )

    return routes


def find_routes(broker: Broker) -> APIRouter:
    """Routes that find messages, whatever became of them."""
    routes = APIRouter(prefix="/v1", tags=["queries"], route_class=BodiesRoute)

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
        return FoundListOut(messages=[_found_out(one) for one in found])

    @routes.get("/message", response_model=MessageOut)
    def message(
        handle: Token | None = None,
        topic: Name | None = None,
        message_id: Annotated[str | None, Query(min_length=1, max_length=1024)] = None,
        body_limit: Annotated[int, Query(ge=0, le=_BODY_LIMIT_MAX)] = _BODY_LIMIT,
    ) -> MessageOut:
        """A timed message with its body and what became of it; by handle, or by topic and id."""
        if (handle is None) == (topic is None or message_id is None):
            raise RequestError("give either a handle, or a topic and a message_id")
        seq = None
        if handle is not None:
            named = Handle.parse(handle)
            topic, message_id, seq = named.topic, named.id, named.seq
        assert topic is not None
        assert message_id is not None
        require(LOOK, topic=topic)
        story = broker.views.messages.story(topic, message_id, seq)
        if story is None:
            raise UnknownMessageError(
                f"no timed message {message_id!r} is known in topic {topic!r}; it may be past its retention"
            )
        reserve([story.message.body[:body_limit]])
        is_due = story.state == "pending" and story.message.deliver_at_ms <= broker.clock.now_ms()
        due = {story.handle.seq: story.topic} if is_due else {}
        waits_for = broker.views.reasons(due).get(story.handle.seq)
        return _message_out(story, body_limit, waits_for)

    return routes


# -- answers --------------------------------------------------------------------------------------


def _status_out(broker: Broker) -> StatusOut:
    status = broker.status()
    waits = [WaitOut.of(wait, topic=_shown(wait.topic)) for wait in status.waits]
    overdue = [
        OverdueOut.of(one, topic=_shown(one.topic), waits_for=one.waits_for or "") for one in status.overdue
    ]
    return StatusOut.of(
        status,
        broker=broker.id,
        is_clock_simulated=broker.clock.is_simulated,
        disk=DiskOut.of(status.disk_space, status),
        waits=waits,
        overdue=overdue,
    )


def _shown(topic: str) -> str:
    """A topic's name; empty where the caller may not look at it."""
    return topic if may(LOOK, topic=topic) else ""


def _found_out(found: MessageView) -> FoundOut:
    text, encoded = body_out(found.message.body)
    own, added = split_properties(found.message.properties)
    return FoundOut.of(
        found, found.message, body=text, body_base64=encoded, properties=own, broker_properties=added
    )


def _message_out(story: MessageStory, body_limit: int, waits_for: str | None) -> MessageOut:
    body = story.message.body
    text, encoded = body_out(body[:body_limit])
    is_cut = len(body) > body_limit
    if text is None and is_cut:  # the cut may have gone through a letter
        text = _text_before_cut(body[:body_limit])
        encoded = encoded if text is None else None
    own, added = split_properties(story.message.properties)
    groups = [GroupPositionOut.of(one) for one in story.groups if may(LOOK, group=one.group)]
    return MessageOut.of(
        story,
        story.message,
        body=text,
        body_base64=encoded,
        body_size=len(body),
        is_body_cut=is_cut,
        properties=own,
        broker_properties=added,
        groups=groups,
        waits_for=waits_for,
    )


def _text_before_cut(part: bytes) -> str | None:
    """Text whose last letter may be missing some bytes; None if it is no text at all."""
    for missing in range(1, 4):
        text, _ = body_out(part[:-missing])
        if text is not None:
            return text
    return None
