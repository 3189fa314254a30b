"""The admin API's figures of the timer: its stages and steps, and delays and lateness by topic.

Translates between the API's models and the broker's values, nothing more. The answer is bounded: topics
beyond a number are summed (`store/topic_histograms.py`). The same figures as in `pipeline_metrics.py`.
"""

from __future__ import annotations

from fastapi import APIRouter

from tidemill.broker.broker import Broker
from tidemill.broker.query.overdue_views import OverdueView
from tidemill.broker.query.topic_counts import kind_counts
from tidemill.core.histogram import BOUNDS_S, Histogram
from tidemill.server.http.figure_models import DurationsOut, FiguresOut, TopicFiguresOut, WorkOut
from tidemill.server.http.status_models import OverdueOut
from tidemill.server.security.caller import LOOK, may, may_everywhere, require
from tidemill.store.topic_histograms import TopicHistogram
from tidemill.timer.step_figures import Stage


def figure_routes(broker: Broker) -> APIRouter:
    """The route for the work of the timer."""
    routes = APIRouter(prefix="/v1", tags=["pictures"])

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
            work=[
                WorkOut(
                    runner=runner.name.lower(),
                    absorbed=counts.absorbed,
                    handed_over=counts.handed_over,
                    rolled=counts.rolled,
                    already_due=counts.already_due,
                )
                for runner, counts in seen.counts.items()
            ],
            delay_bounds_ms=list(broker.store.requested_delays.bounds_ms),
            lateness_bounds_ms=list(broker.releaser.figures.by_topic.bounds_ms),
            topics=_topics(broker),
        )

    return routes


def overdue_out(view: OverdueView) -> OverdueOut:
    topic = view.topic if may(LOOK, topic=view.topic) else ""
    return OverdueOut(waits_for=view.waits_for or "", topic=topic, due_ms=view.due_ms)


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
