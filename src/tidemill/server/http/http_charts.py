"""The admin API's queries for the dashboard: forecast, wheel, history, steps, one message, current user.

Translates between the API's models and the broker's values, nothing more; every answer is bounded. An answer
states in its `Server-Timing` header what it cost, and the dashboard repeats the request no sooner than a
hundred times that: so an open page never takes more than a hundredth of a core, however much is pending.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.types import Message, Send

from tidemill.broker.broker import Broker
from tidemill.broker.query.due_windows import STEPS_MAX
from tidemill.broker.query.message_history import MessageStory
from tidemill.broker.query.metrics_history import BOUNDS_MS
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import RequestError, UnknownMessageError
from tidemill.core.limits import KIB, MIB
from tidemill.core.model import Handle
from tidemill.server.http.chart_models import (
    DialOut,
    DueTopicOut,
    DueWindowOut,
    EventOut,
    MeOut,
    MessageOut,
    MetricsHistoryOut,
    PendingCountOut,
    ShardOut,
    ShardPositionsOut,
    Step,
    StepListOut,
    StepOut,
    WheelOut,
)
from tidemill.server.http.http_messages import body_out
from tidemill.server.http.http_models import Key, Moment, Name, Token
from tidemill.server.response_budget import BodiesRoute, reserve
from tidemill.server.security.caller import LOOK, caller, may, require, require_on
from tidemill.server.security.permissions import Verb

_BODY_LIMIT = 64 * KIB
_BODY_LIMIT_MAX = 4 * MIB
_FOREVER_MS = 1 << 52


def timed(send: Send) -> Send:
    """A `send` that puts the time taken into the answer's header."""
    started_s = stopwatch_s()

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            took = f"app;dur={(stopwatch_s() - started_s) * 1000:.1f}"
            message["headers"] = [*message.get("headers", ()), (b"server-timing", took.encode())]
        await send(message)

    return tell


def picture_routes(broker: Broker) -> APIRouter:
    """Routes that count what is to come."""
    routes = APIRouter(prefix="/v1", tags=["pictures"])

    @routes.get("/forecast/window", response_model=DueWindowOut)
    def window(
        from_ms: Moment,
        step_ms: Step,
        steps: Annotated[int, Query(ge=1, le=STEPS_MAX)],
        topic: Name | None = None,
    ) -> DueWindowOut:
        """How many messages fall due in each step of a window, by topic. Whole minutes are cheapest."""
        require_on(LOOK, topic)
        found = broker.views.due.window(topic_name=topic, from_ms=from_ms, step_ms=step_ms, steps=steps)
        topics = [DueTopicOut(topic=name, due=due.tolist()) for name, due in found.by_topic.items()]
        if found.others is not None:
            topics.append(DueTopicOut(topic=None, due=found.others.tolist()))
        return DueWindowOut(
            now_ms=found.now_ms,
            from_ms=found.from_ms,
            step_ms=found.step_ms,
            due=found.due.tolist(),
            topics=topics,
            before=found.before,
            later=found.later,
        )

    @routes.get("/pending/count", response_model=PendingCountOut)
    def count(
        topic: Name | None = None, key: Key | None = None, from_ms: Moment = 0, to_ms: Moment = _FOREVER_MS
    ) -> PendingCountOut:
        """How many pending messages match, by the same filters as `/v1/pending`."""
        require_on(LOOK, topic)
        found = broker.views.count_pending(topic_name=topic, key=key, from_ms=from_ms, to_ms=to_ms)
        return PendingCountOut(now_ms=broker.clock.now_ms(), messages=found)

    return routes


def past_routes(broker: Broker) -> APIRouter:
    """Routes for the state of the timer and its recent steps."""
    routes = APIRouter(prefix="/v1", tags=["pictures"])

    @routes.get("/wheel", response_model=WheelOut)
    def wheel() -> WheelOut:
        """How full the slots of the timing wheel are, as three dials: a minute, an hour, the whole window."""
        require(LOOK)
        return _wheel_out(broker)

    @routes.get("/pulse", response_model=MetricsHistoryOut)
    def pulse(
        every_ms: Annotated[int, Query(ge=1, le=60_000)] = 1_000, since_ms: Moment = 0
    ) -> MetricsHistoryOut:
        """The recent past: a sample every second for 15 minutes, or every minute for a day."""
        require(LOOK)
        view = broker.metrics_history.view(every_ms, since_ms)
        return MetricsHistoryOut(
            now_ms=broker.clock.now_ms(),
            every_ms=view.every_ms,
            at_ms=view.at_ms.tolist(),
            sent=view.sent.tolist(),
            released=view.released.tolist(),
            cancelled=view.cancelled.tolist(),
            pending=view.pending.tolist(),
            bounds_ms=list(BOUNDS_MS),
            lateness=view.lateness.tolist(),
        )

    @routes.get("/steps", response_model=StepListOut)
    def steps() -> StepListOut:
        """The last steps of the timer, and who took them."""
        require(LOOK)
        rows = [
            StepOut(
                at_ms=step.at_ms,
                runner=step.runner,
                steps=step.steps,
                rows=step.rows,
                drained_to_ms=step.drained_to_ms,
            )
            for step in broker.steps.latest()
        ]
        return StepListOut(now_ms=broker.clock.now_ms(), steps=rows)

    return routes


def message_routes(broker: Broker) -> APIRouter:
    """Routes for one message."""
    routes = APIRouter(prefix="/v1", tags=["looks"], route_class=BodiesRoute)

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
        return _message_out(story, body_limit)

    return routes


def me_routes(broker: Broker) -> APIRouter:
    """Routes for the caller's own face."""
    routes = APIRouter(prefix="/v1", tags=["looks"])

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


# -- shapes ---------------------------------------------------------------------------------------


def _wheel_out(broker: Broker) -> WheelOut:
    seen = broker.wheel.picture()
    return WheelOut(
        now_ms=seen.now_ms,
        has_wheel=seen.has_wheel,
        tick_ms=seen.tick_ms,
        slots=seen.slots,
        window_slots=seen.window_slots,
        timers=seen.timers,
        filled_slots=seen.filled_slots,
        fullest=seen.fullest,
        fullest_at_ms=seen.fullest_at_ms,
        shards=[
            ShardOut(drained_to_ms=s.drained_to_ms, absorbed_seq=s.absorbed_seq, step=s.step)
            for s in seen.shards
        ],
        dials=[DialOut(turn_ms=d.turn_ms, sector_ms=d.sector_ms, loads=d.loads.tolist()) for d in seen.dials],
    )


def _message_out(story: MessageStory, body_limit: int) -> MessageOut:
    message = story.message
    shown: Any = message.body[:body_limit]
    text, encoded = body_out(shown)
    is_cut = len(message.body) > body_limit
    if text is None and is_cut:  # the cut may have gone through a letter
        text = _text_before_cut(shown)
        encoded = encoded if text is None else None
    return MessageOut(
        topic=story.topic,
        message_id=message.id,
        handle=str(story.handle),
        state=story.state,
        body=text,
        body_base64=encoded,
        body_size=len(message.body),
        is_body_cut=is_cut,
        size=story.size,
        keys=list(message.keys),
        tag=message.tag,
        message_group=message.message_group,
        properties=dict(message.properties),
        level=message.level,
        born_at_ms=message.born_at_ms,
        stored_at_ms=message.stored_at_ms,
        deliver_at_ms=message.deliver_at_ms,
        queue=story.queue_id,
        offset=story.offset,
        released_at_ms=story.released_at_ms,
        via=story.via.name.lower() if story.via is not None else None,
        rolls=story.rolls,
        history=[EventOut(what=e.what, at_ms=e.at_ms, deliver_at_ms=e.deliver_at_ms) for e in story.history],
        groups=[
            ShardPositionsOut(group=g.group, standing=g.standing, attempt=g.attempt)
            for g in story.groups
            if may(LOOK, group=g.group)
        ],
        is_damaged=story.is_damaged,
    )


def _text_before_cut(part: bytes) -> str | None:
    """Text whose last letter may be missing some bytes; None if it is no text at all."""
    for missing in range(1, 4):
        text, _ = body_out(part[:-missing])
        if text is not None:
            return text
    return None
