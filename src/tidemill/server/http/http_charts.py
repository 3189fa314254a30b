"""The charts of the dashboard by HTTP: forecast, wheel, history, steps, figures of the timer.

Translates between the API's models and the broker's values, nothing more; every answer is bounded. An answer
states in its `Server-Timing` header what it cost, and the dashboard repeats the request no sooner than a
hundred times that: so an open page never takes more than a hundredth of a core, however much is pending.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.types import Message, Send

from tidemill.broker.broker import Broker
from tidemill.broker.query.due_windows import STEPS_MAX
from tidemill.broker.query.metrics_history import BOUNDS_MS, kind_counts
from tidemill.core.clock import stopwatch_s
from tidemill.core.histogram import BOUNDS_S, Histogram
from tidemill.core.limits import MAX_DELAY_MS
from tidemill.server.http.http_models import Key, Moment, Name
from tidemill.server.http.http_views import FOREVER_MS
from tidemill.server.http.view_models import (
    DueTopicOut,
    DueWindowOut,
    DurationsOut,
    FiguresOut,
    MetricsHistoryOut,
    PendingCountOut,
    StepListOut,
    StepOut,
    TopicFiguresOut,
    WheelOut,
    WorkOut,
)
from tidemill.server.security.caller import LOOK, may, may_everywhere, require, require_on
from tidemill.store.topic_histograms import TopicHistogram
from tidemill.timer.step_figures import Stage

_Step = Annotated[int, Query(ge=1_000, le=MAX_DELAY_MS, description="milliseconds, at least 1000")]


def timed(send: Send) -> Send:
    """A `send` that puts the time taken into the answer's header."""
    started_s = stopwatch_s()

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            took = f"app;dur={(stopwatch_s() - started_s) * 1000:.1f}"
            message["headers"] = [*message.get("headers", ()), (b"server-timing", took.encode())]
        await send(message)

    return tell


def due_routes(broker: Broker) -> APIRouter:
    """Routes that count what is to come."""
    routes = APIRouter(prefix="/v1", tags=["charts"])

    @routes.get("/forecast/window", response_model=DueWindowOut)
    def window(
        from_ms: Moment,
        step_ms: _Step,
        steps: Annotated[int, Query(ge=1, le=STEPS_MAX)],
        topic: Name | None = None,
    ) -> DueWindowOut:
        """How many messages fall due in each step of a window, by topic. Whole minutes are cheapest."""
        require_on(LOOK, topic)
        found = broker.views.due.window(topic_name=topic, from_ms=from_ms, step_ms=step_ms, steps=steps)
        topics = [DueTopicOut.of(topic=name, due=due) for name, due in found.by_topic.items()]
        if found.others is not None:
            topics.append(DueTopicOut.of(topic=None, due=found.others))
        return DueWindowOut.of(found, topics=topics)

    @routes.get("/pending/count", response_model=PendingCountOut)
    def count(
        topic: Name | None = None, key: Key | None = None, from_ms: Moment = 0, to_ms: Moment = FOREVER_MS
    ) -> PendingCountOut:
        """How many pending messages match, by the same filters as `/v1/pending`."""
        require_on(LOOK, topic)
        found = broker.views.count_pending(topic_name=topic, key=key, from_ms=from_ms, to_ms=to_ms)
        return PendingCountOut(now_ms=broker.clock.now_ms(), messages=found)

    return routes


def history_routes(broker: Broker) -> APIRouter:
    """Routes for the state of the timer and its recent steps."""
    routes = APIRouter(prefix="/v1", tags=["charts"])

    @routes.get("/wheel", response_model=WheelOut)
    def wheel() -> WheelOut:
        """How full the slots of the timing wheel are, as three dials: a minute, an hour, the whole window."""
        require(LOOK)
        return WheelOut.of(broker.wheel.picture())

    @routes.get("/pulse", response_model=MetricsHistoryOut)
    def pulse(
        every_ms: Annotated[int, Query(ge=1, le=60_000)] = 1_000, since_ms: Moment = 0
    ) -> MetricsHistoryOut:
        """The recent past: a sample every second for 15 minutes, or every minute for a day."""
        require(LOOK)
        view = broker.metrics_history.view(every_ms, since_ms)
        return MetricsHistoryOut.of(view, now_ms=broker.clock.now_ms(), bounds_ms=list(BOUNDS_MS))

    @routes.get("/steps", response_model=StepListOut)
    def steps() -> StepListOut:
        """The last steps of the timer, and who took them."""
        require(LOOK)
        rows = list(map(StepOut.of, broker.steps.latest()))
        return StepListOut(now_ms=broker.clock.now_ms(), steps=rows)

    @routes.get("/figures", response_model=FiguresOut)
    def figures() -> FiguresOut:
        """What the timer did and how long its stages took; requested delays and lateness, by topic."""
        require(LOOK)
        seen = broker.figures
        stages = {**seen.stages, Stage.RELEASE: broker.releaser.figures.durations}
        return FiguresOut(
            now_ms=broker.clock.now_ms(),
            bounds_ms=[bound * 1000 for bound in BOUNDS_S],
            stages=[_durations(stage, histogram) for stage, histogram in stages.items()],
            steps=[_durations(runner.name.lower(), one) for runner, one in seen.steps.items()],
            work=[WorkOut.of(counts, runner=runner) for runner, counts in seen.counts.items()],
            delay_bounds_ms=list(broker.store.requested_delays.bounds_ms),
            lateness_bounds_ms=list(broker.releaser.figures.by_topic.bounds_ms),
            topics=_topics(broker),
        )

    return routes


# -- answers --------------------------------------------------------------------------------------


def _durations(name: str, histogram: Histogram) -> DurationsOut:
    counts = list(histogram.counts)
    return DurationsOut(name=name, count=sum(counts), sum_ms=histogram.sum_s * 1000, counts=counts)


def _topics(broker: Broker) -> list[TopicFiguresOut]:
    """Every named topic that the caller may look at; the others for users who may look at all."""
    delays, lateness = _counts(broker.store.requested_delays), _counts(broker.releaser.figures.by_topic)
    no_delays = [0] * (len(broker.store.requested_delays.bounds_ms) + 1)
    no_lateness = [0] * (len(broker.releaser.figures.by_topic.bounds_ms) + 1)
    return [
        TopicFiguresOut(
            topic=one.topic,
            timed=one.timed,
            immediate=one.immediate,
            delays=delays.get(one.topic, no_delays),
            lateness=lateness.get(one.topic, no_lateness),
        )
        for one in kind_counts(broker.store)
        if (may_everywhere(LOOK) if one.topic is None else may(LOOK, topic=one.topic))
    ]


def _counts(histogram: TopicHistogram) -> dict[str | None, list[int]]:
    return {one.topic: one.counts for one in histogram.by_topic()}
