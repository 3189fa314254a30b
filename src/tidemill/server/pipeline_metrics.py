"""Metrics for Prometheus of timed messages: requested delays, steps, the load ahead, lateness.

Owns the names of these metrics, with the rules of `metrics.py`: gathered on each scrape, topics shown to
users who may look at them. At most `TOPICS_NAMED_MAX` topics are named; the others are summed under one
label, for users who may look at every topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.broker.broker import Broker
from tidemill.broker.query.due_windows import FILLS, load_ahead
from tidemill.broker.query.metrics_history import kind_counts
from tidemill.core.histogram import Histogram
from tidemill.release.backlogs import WaitReason
from tidemill.server.security.caller import LOOK, may, may_everywhere
from tidemill.store.topic_histograms import OTHER_TOPICS, TopicHistogram
from tidemill.timer.step_figures import Stage

NO_REASON = "none"


class PipelineCollector(Collector):
    """One broker's figures of timed messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        yield from self._kinds()
        yield _by_topic(
            "requested_delay_seconds",
            f"Delays that were asked for, by topic: from stored to due. {_NAMED}",
            self._broker.store.requested_delays,
        )
        yield _by_topic(
            "topic_lateness_seconds",
            f"From due time to visible, by topic. {_NAMED}",
            self._broker.releaser.figures.by_topic,
        )
        yield from self._steps()
        yield from self._ahead()
        yield self._overdue()

    def _kinds(self) -> Iterator[Metric]:
        timed = CounterMetricFamily(
            "tidemill_timed_messages", f"Messages stored for later. {_NAMED}", labels=["topic"]
        )
        immediate = CounterMetricFamily(
            "tidemill_immediate_messages",
            f"Messages stored that went into their queue at once. {_NAMED}",
            labels=["topic"],
        )
        for counts in kind_counts(self._broker.store):
            if (label := _label(counts.topic)) is not None:
                timed.add_metric([label], counts.timed)
                immediate.add_metric([label], counts.immediate)
        yield from (timed, immediate)

    def _steps(self) -> Iterator[Metric]:
        figures = self._broker.figures
        for name, text, count_of in _WORK:
            family = CounterMetricFamily(f"tidemill_pipeline_{name}", text, labels=["runner"])
            for runner, counts in figures.counts.items():
                family.add_metric([runner.name.lower()], getattr(counts, count_of))
            yield family
        stages = HistogramMetricFamily(
            "tidemill_pipeline_stage_seconds",
            "Time of one stage of a step of one shard; release: of one release record.",
            labels=["stage"],
        )
        for stage, histogram in figures.stages.items():
            _add(stages, stage, histogram)
        _add(stages, Stage.RELEASE, self._broker.releaser.figures.durations)
        steps = HistogramMetricFamily(
            "tidemill_pipeline_step_seconds",
            "Time of a whole step: of one shard by the broker itself, of all shards together by Spark.",
            labels=["runner"],
        )
        for runner, histogram in figures.steps.items():
            _add(steps, runner.name.lower(), histogram)
        yield from (stages, steps)

    def _ahead(self) -> Iterator[Metric]:
        broker = self._broker
        ahead = load_ahead(broker.store, broker.wheel, broker.clock.now_ms())
        yield GaugeMetricFamily(
            "tidemill_peak_minute_messages",
            "Messages that fall due in the fullest minute of the next hour.",
            value=ahead.peak,
        )
        yield GaugeMetricFamily(
            "tidemill_peak_minute_timestamp_seconds",
            "When the fullest minute of the next hour begins, Unix time; 0: nothing falls due in it.",
            value=(ahead.peak_at_ms or 0) / 1000,
        )
        yield GaugeMetricFamily(
            "tidemill_wheel_fullest_slot_messages",
            "Messages in the fullest slot of the wheel's next hour.",
            value=ahead.fullest,
        )
        slots = GaugeMetricFamily(
            "tidemill_wheel_slots",
            "Slots of the wheel's next hour, by how many messages they hold at least.",
            labels=["holds"],
        )
        for fill, count in zip(FILLS, ahead.slots, strict=False):  # none where there is no wheel
            slots.add_metric([str(fill)], count)
        yield slots

    def _overdue(self) -> Metric:
        family = GaugeMetricFamily(
            "tidemill_oldest_overdue_seconds",
            "How long the message that is due longest has been due, by what it waits for; 0: there is none.",
            labels=["waits_for"],
        )
        status = self._broker.status()
        ages = {view.waits_for: status.now_ms - view.due_ms for view in status.overdue}
        for reason in (*WaitReason, None):
            family.add_metric([reason or NO_REASON], ages.get(reason, 0) / 1000)
        return family


_NAMED = f"Of the topics beyond a number the sum, as {OTHER_TOPICS}."
_WORK = (
    ("absorbed_messages", "Timed messages that the timer has read and placed.", "absorbed"),
    ("handed_over_messages", "Timed messages that the timer has given to the releaser.", "handed_over"),
    ("rolled_messages", "Times a message was placed again because its slot came before its time.", "rolled"),
    ("already_due_messages", "Absorbed messages that were handed over in the same step.", "already_due"),
)


def _label(topic: str | None) -> str | None:
    """How a topic is named to the caller; None if it is not. The others are for who may look at all."""
    if topic is None:
        return OTHER_TOPICS if may_everywhere(LOOK) else None
    return topic if may(LOOK, topic=topic) else None


def _by_topic(name: str, text: str, histogram: TopicHistogram) -> Metric:
    family = HistogramMetricFamily(f"tidemill_{name}", text, labels=["topic"])
    bounds = [*(str(bound / 1000) for bound in histogram.bounds_ms), "+Inf"]
    for counts in histogram.by_topic():
        if (label := _label(counts.topic)) is not None:
            total, buckets = 0, []
            for bound, count in zip(bounds, counts.counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([label], buckets, counts.sum_ms / 1000)
    return family


def _add(family: HistogramMetricFamily, label: str, histogram: Histogram) -> None:
    family.add_metric([label], histogram.cumulative(), histogram.sum_s)
