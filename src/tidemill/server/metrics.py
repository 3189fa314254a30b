"""Figures for Prometheus: gathered when somebody asks, so that they cost nothing otherwise.

Owns the names, which stay. Counts come from the log's own totals, so they survive a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidemill.broker.broker import Broker
from tidemill.server.disk_watch import is_disk_low


class BrokerCollector(Collector):
    """One broker's figures."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        yield from self._by_topic()
        yield from self._overall()
        yield from self._histograms()
        yield from self._by_group()

    def _by_topic(self) -> Iterator[Metric]:
        sent = CounterMetricFamily("tidemill_messages_sent", "Messages stored", labels=["topic"])
        released = CounterMetricFamily(
            "tidemill_messages_released", "Timed messages put into their topic", labels=["topic"]
        )
        cancelled = CounterMetricFamily("tidemill_messages_cancelled", "Messages cancelled", labels=["topic"])
        pending = GaugeMetricFamily("tidemill_pending_messages", "Messages that wait", labels=["topic"])
        paused = GaugeMetricFamily("tidemill_topic_paused", "1 where releases are held", labels=["topic"])
        for topic in self._broker.views.topics():
            sent.add_metric([topic.name], topic.sent)
            released.add_metric([topic.name], topic.released)
            cancelled.add_metric([topic.name], topic.cancelled)
            pending.add_metric([topic.name], topic.pending)
            paused.add_metric([topic.name], float(topic.is_paused))
        yield from (sent, released, cancelled, pending, paused)

    def _overall(self) -> Iterator[Metric]:
        status = self._broker.status()
        for name, text, value in (
            ("near_messages", "Messages due within the lead, held in memory", status.near),
            ("ready_messages", "Messages handed over by the pipeline, not due yet", status.ready),
            ("backlog_messages", "Messages due but held by a pause or a rate limit", status.backlog),
            ("log_bytes", "Bytes of the commit log", status.log_bytes),
            ("disk_free_bytes", "Free bytes of the data directory's disk", status.disk_free_bytes),
            ("disk_full", "1 while sends are refused for want of room", float(status.is_disk_full)),
            ("disk_low", "1 while the disk is nearly full", float(is_disk_low(self._broker))),
            ("clock_leaps", "Forward leaps of the wall clock that were seen", status.clock_leaps),
            ("lateness_p99_seconds", "99th percentile of recent lateness", status.lateness_ms.p99_ms / 1000),
            ("lateness_max_seconds", "Worst lateness since the start", status.lateness_ms.max_ms / 1000),
            ("pipeline_lag_seconds", "How far the timer pipeline is behind", status.pipeline.lag_ms / 1000),
            ("pipeline_takeovers", "Times the broker took the wheel over", status.pipeline.takeovers),
        ):
            yield GaugeMetricFamily(f"tidemill_{name}", text, value=value)
        runner = InfoMetricFamily("tidemill_pipeline", "Who turns the wheel, and its state")
        runner.add_metric([], {"runner": status.pipeline.runner, "state": status.pipeline.state})
        yield runner

    def _histograms(self) -> Iterator[Metric]:
        late = self._broker.releaser.lateness.histogram
        yield HistogramMetricFamily(
            "tidemill_release_lateness_seconds",
            "From due time to visible in the topic",
            buckets=late.cumulative(),
            sum_value=late.sum_s,
        )
        commit = self._broker.store.writer.sync_durations
        yield HistogramMetricFamily(
            "tidemill_commit_seconds",
            "Time of one sync of the commit log",
            buckets=commit.cumulative(),
            sum_value=commit.sum_s,
        )

    def _by_group(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "tidemill_group_lag", "Messages not handed out yet", labels=["group", "topic"]
        )
        unsettled = GaugeMetricFamily(
            "tidemill_group_unsettled", "Messages handed out and not settled", labels=["group", "topic"]
        )
        for group in self._broker.views.groups():
            for topic, count in group.lag.items():
                lag.add_metric([group.name, topic], count)
            for topic, count in group.unsettled.items():
                unsettled.add_metric([group.name, topic], count)
        yield from (lag, unsettled)


def registry_of(broker: Broker) -> CollectorRegistry:
    """A registry with this broker's figures alone."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    return registry
