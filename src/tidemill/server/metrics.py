"""Metrics for Prometheus: gathered on each scrape, so that they cost nothing otherwise.

Owns the names, which are stable: dashboards, alert rules and the reference are compared with what is gathered
here. Counts of messages come from the log's own totals, so they survive a restart; what a process counts
(rejects, takeovers, calls, histograms) starts with it, as Prometheus expects. Topics and groups are shown to
users who may look at them, and groups also to users who may look at every topic: a scraper has no groups of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidemill.broker.broker import Broker
from tidemill.broker.query.status import Status
from tidemill.core.histogram import Histogram
from tidemill.core.holds import Held
from tidemill.release.backlogs import HoldReason
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.pipeline_metrics import PipelineCollector
from tidemill.server.rejects import REJECTS
from tidemill.server.security.caller import LOOK, may, may_compare, may_everywhere


class BrokerCollector(Collector):
    """One broker's figures."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        status = self._broker.status()
        yield from self._by_topic(status)
        yield from self._by_group()
        yield from self._by_level(status)
        yield from self._on_the_way(status)
        yield from self._pipeline(status)
        yield from self._disk(status)
        yield from self._health(status)
        yield from self._damage(status)
        yield from self._histograms()
        yield from self._settings()

    def _by_topic(self, status: Status) -> Iterator[Metric]:
        sent = CounterMetricFamily("tidemill_messages_sent", "Messages stored.", labels=["topic"])
        released = CounterMetricFamily(
            "tidemill_messages_released", "Timed messages put into their topic.", labels=["topic"]
        )
        cancelled = CounterMetricFamily(
            "tidemill_messages_cancelled", "Messages cancelled.", labels=["topic"]
        )
        visible = CounterMetricFamily(
            "tidemill_messages_visible", "Messages put into a topic's queues, timed or not.", labels=["topic"]
        )
        pending = GaugeMetricFamily("tidemill_pending_messages", "Messages that wait.", labels=["topic"])
        paused = GaugeMetricFamily("tidemill_topic_paused", "1 where releases are held.", labels=["topic"])
        clamped = CounterMetricFamily(
            "tidemill_levels_clamped",
            "Messages whose delay level was above the highest, which was used.",
            labels=["topic"],
        )
        for topic in self._broker.views.topics():
            if not may(LOOK, topic=topic.name):
                continue
            sent.add_metric([topic.name], topic.sent)
            released.add_metric([topic.name], topic.released)
            cancelled.add_metric([topic.name], topic.cancelled)
            visible.add_metric([topic.name], topic.visible)
            pending.add_metric([topic.name], topic.pending)
            paused.add_metric([topic.name], float(topic.is_paused))
            clamped.add_metric([topic.name], status.clamped_levels.get(topic.name, 0))
        yield from (sent, released, cancelled, visible, pending, paused, clamped)

    def _by_group(self) -> Iterator[Metric]:
        labels = ["group", "topic"]
        lag = GaugeMetricFamily("tidemill_group_lag", "Messages not handed out yet.", labels=labels)
        unsettled = GaugeMetricFamily(
            "tidemill_group_unsettled", "Messages handed out and not settled.", labels=labels
        )
        sees_all = may_everywhere(LOOK)
        for group in self._broker.views.groups():
            for topic in group.lag:
                if sees_all or may_compare(group.name, topic):
                    lag.add_metric([group.name, topic], group.lag[topic])
                    unsettled.add_metric([group.name, topic], group.unsettled[topic])
        yield from (lag, unsettled)

    def _on_the_way(self, status: Status) -> Iterator[Metric]:
        late = status.lateness_ms
        yield _gauge("near_messages", "Messages due within the lead, held in memory.", status.near)
        yield _gauge(
            "ready_messages", "The ready set: handed over by the pipeline, not due yet.", status.ready
        )
        yield _gauge("backlog_messages", "Messages due but held by a pause or a rate limit.", status.backlog)
        yield _gauge("open_transactions", "Begun and not ended.", status.open_transactions)
        waits = GaugeMetricFamily(
            "tidemill_release_waiting_messages",
            "Messages due and not in their topic yet, by what they wait for.",
            labels=["waits_for"],
        )
        for reason in HoldReason:
            waits.add_metric([reason], sum(w.messages for w in status.waits if w.waits_for is reason))
        yield waits
        holds = GaugeMetricFamily(
            "tidemill_held", "1 while an operator holds releases or absorbing.", labels=["what"]
        )
        for what in Held:
            holds.add_metric([what], float(status.holds.since_ms(what) is not None))
        yield holds
        yield _counter(
            "swept_messages",
            "Messages overdue and missing in the timer, found by a sweep and released; 0 in normal "
            "operation.",
            status.swept,
        )
        yield _gauge("lateness_p99_seconds", "99th percentile of recent lateness.", late.p99_ms / 1000)
        yield _gauge("lateness_max_seconds", "Worst lateness since the start.", late.max_ms / 1000)
        yield _gauge("in_flight_send_bytes", "Bodies of sends not answered yet.", status.in_flight_bytes)
        rejects = CounterMetricFamily(
            "tidemill_rejects",
            "Requests and messages refused, by protocol (grpc, http, flight) and error code.",
            labels=["protocol", "code"],
        )
        for (protocol, code), count in sorted(REJECTS.counts().items()):
            rejects.add_metric([protocol, code], count)
        yield rejects

    def _by_level(self, status: Status) -> Iterator[Metric]:
        labels = ["level", "delay_seconds"]
        waiting = GaugeMetricFamily("tidemill_level_waiting", "Messages that wait on a level.", labels=labels)
        due = GaugeMetricFamily(
            "tidemill_level_next_due_timestamp_seconds",
            "When the next one of a level is due, Unix time; 0: none waits.",
            labels=labels,
        )
        lag = GaugeMetricFamily(
            "tidemill_level_lag_seconds", "How long the earliest of a level has been due.", labels=labels
        )
        for view in status.levels:
            names = [str(view.level), f"{view.delay_ms / 1000:g}"]
            waiting.add_metric(names, view.waiting)
            due.add_metric(names, (view.next_due_ms or 0) / 1000)
            lag.add_metric(names, view.lag_ms / 1000)
        yield from (waiting, due, lag)

    def _pipeline(self, status: Status) -> Iterator[Metric]:
        pipeline = status.pipeline
        yield _gauge(
            "pipeline_lag_seconds",
            "Delay of the slowest shard; 0 while it keeps up.",
            pipeline.lag_ms / 1000,
        )
        yield _gauge(
            "pipeline_unabsorbed_messages",
            "Timed messages that the slowest shard has not read yet.",
            pipeline.unabsorbed,
        )
        yield _counter(
            "pipeline_takeovers", "Times the broker took over the timer from Spark.", pipeline.takeovers
        )
        runner = InfoMetricFamily(
            "tidemill_pipeline", "What runs the timer (runner), and the state of Spark (state)."
        )
        runner.add_metric([], {"runner": pipeline.runner, "state": pipeline.state})
        yield runner
        yield _counter(
            "clock_leaps", "Forward leaps of the wall clock; each held releases for 10 s.", status.clock_leaps
        )

    def _disk(self, status: Status) -> Iterator[Metric]:
        yield _gauge("log_bytes", "Bytes of the commit log.", status.log_bytes)
        yield _gauge(
            "disk_free_bytes", "Free bytes of the data directory's disk.", status.disk_space.free_bytes
        )
        yield _gauge("disk_size_bytes", "Size of the data directory's disk.", status.disk_space.total_bytes)
        yield _gauge("disk_low", "1 while the disk is nearly full.", status.disk_space.is_low)
        yield _gauge(
            "disk_full", "1 while sends are refused because the disk is full.", status.disk_space.is_full
        )
        yield _gauge(
            "directory_gone",
            "1 while the data directory is removed or unmounted.",
            status.disk_space.is_gone,
        )

    def _health(self, status: Status) -> Iterator[Metric]:
        yield _gauge(
            "healthy", "1 while /healthz answers 200, 0 while something is wrong.", status.health.is_ok
        )
        failures = CounterMetricFamily(
            "tidemill_service_failures", "Steps of the broker's services that failed.", labels=["service"]
        )
        for service, count in sorted(status.health.failures.items()):
            failures.add_metric([service], count)
        yield failures
        derived_again = CounterMetricFamily(
            "tidemill_derived_again",
            "Rows and files that failed their checksum and were derived again from the commit log.",
            labels=["kind"],
        )
        for kind, count in self._broker.store.repairs.counts().items():
            derived_again.add_metric([kind.value], count)
        yield derived_again

    def _damage(self, status: Status) -> Iterator[Metric]:
        damage = status.damage
        yield _gauge(
            "damaged_frames",
            "Frames of the commit log known to be damaged; neighbours without messages count once.",
            damage.frames,
        )
        yield _gauge(
            "damaged_messages",
            "Messages in damaged frames that wait or are in a queue; they are not delivered.",
            damage.messages,
        )
        yield _gauge(
            "damaged_pending_messages",
            "Messages in damaged frames that wait; retention keeps the log from the first one on.",
            damage.pending,
        )

    def _histograms(self) -> Iterator[Metric]:
        yield _histogram(
            "release_lateness_seconds",
            "From due time to visible in the topic.",
            self._broker.releaser.lateness.histogram,
        )
        yield _histogram(
            "commit_seconds", "Time of one sync of the commit log.", self._broker.store.sync_durations
        )

    def _settings(self) -> Iterator[Metric]:
        settings = self._broker.settings
        yield _gauge("lead_seconds", "How far the timer works ahead.", settings.lead_ms / 1000)
        yield _gauge(
            "in_flight_send_limit_bytes",
            "Limit of in_flight_send_bytes; sends beyond it are refused.",
            settings.in_flight_bytes_max,
        )
        build = InfoMetricFamily("tidemill_build", "The version that runs.")
        build.add_metric([], {"version": version("tidemill"), "broker": self._broker.id})
        yield build


class EndpointCollector(Collector):
    """The counters of the gRPC endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        calls = CounterMetricFamily("tidemill_grpc_calls", "gRPC calls taken, by method.", labels=["method"])
        for method, count in sorted(self._gateway.call_counts.copy().items()):
            calls.add_metric([method], count)
        yield calls
        yield _gauge(
            "grpc_calls_in_flight",
            "gRPC calls not answered yet, waiting polls among them.",
            self._gateway.calls_under_way,
        )
        yield _gauge("grpc_clients", "Clients with an open telemetry stream.", len(self._gateway.sessions))


def registry_of(broker: Broker, gateway: Gateway | None = None) -> CollectorRegistry:
    """A registry with the metrics of this broker, its gRPC endpoint and its process."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    registry.register(PipelineCollector(broker))
    if gateway is not None:
        registry.register(EndpointCollector(gateway))
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tidemill_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tidemill_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        f"tidemill_{name}", text, buckets=histogram.cumulative(), sum_value=histogram.sum_s
    )
