"""Metrics for Prometheus: gathered on each scrape, so that they cost nothing otherwise.

Owns the names, which are stable: dashboards, alert rules and the reference are compared with what is gathered
here. Counts of messages come from the log's own totals, so they survive a restart; what a process counts
(rejects, takeovers, calls, histograms) starts with it, as Prometheus expects. Topics and groups are shown to
users who may look at them, and groups also to users who may look at every topic: a scraper has no groups of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from operator import attrgetter
from typing import Any

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
from tidemill.broker.query.status import LevelView, Status
from tidemill.core.holds import Held
from tidemill.release.backlogs import WaitReason
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.pipeline_metrics import PipelineCollector
from tidemill.server.rejects import REJECTS
from tidemill.server.security.caller import LOOK, may, may_compare, may_everywhere

# Kind, name, attribute of a topic's view, text.
_OF_TOPIC = (
    (CounterMetricFamily, "messages_sent", "sent", "Messages stored."),
    (CounterMetricFamily, "messages_released", "released", "Timed messages put into their topic."),
    (CounterMetricFamily, "messages_cancelled", "cancelled", "Messages cancelled."),
    (CounterMetricFamily, "messages_visible", "visible", "Messages put into a topic's queues, timed or not."),
    (GaugeMetricFamily, "pending_messages", "pending", "Messages that wait."),
    (GaugeMetricFamily, "topic_paused", "is_paused", "1 where releases are held."),
)
_LevelValue = Callable[[LevelView], float]
_OF_LEVEL: tuple[tuple[str, str, _LevelValue], ...] = (
    ("level_waiting", "Messages that wait on a level.", lambda view: view.waiting),
    (
        "level_next_due_timestamp_seconds",
        "When the next one of a level is due, Unix time; 0: none waits.",
        lambda view: (view.next_due_ms or 0) / 1000,
    ),
    ("level_lag_seconds", "How long the earliest of a level has been due.", lambda view: view.lag_ms / 1000),
)
# Kind, name, attribute of the status, text.
_OF_STATUS = (
    (GaugeMetricFamily, "near_messages", "near", "Messages due within the lead, held in memory."),
    (
        GaugeMetricFamily,
        "ready_messages",
        "ready",
        "The ready set: handed over by the pipeline, not due yet.",
    ),
    (GaugeMetricFamily, "backlog_messages", "backlog", "Messages due but held by a pause or a rate limit."),
    (GaugeMetricFamily, "open_transactions", "open_transactions", "Begun and not ended."),
    (GaugeMetricFamily, "in_flight_send_bytes", "in_flight_bytes", "Bodies of sends not answered yet."),
    (
        CounterMetricFamily,
        "swept_messages",
        "swept",
        "Messages overdue and missing in the timer, found by a sweep and released; 0 in normal operation.",
    ),
    (
        GaugeMetricFamily,
        "pipeline_unabsorbed_messages",
        "pipeline.unabsorbed",
        "Timed messages that the slowest shard has not read yet.",
    ),
    (
        CounterMetricFamily,
        "pipeline_takeovers",
        "pipeline.takeovers",
        "Times the broker took over the timer from Spark.",
    ),
    (
        CounterMetricFamily,
        "clock_leaps",
        "clock_leaps",
        "Forward leaps of the wall clock; each held releases for 10 s.",
    ),
    (GaugeMetricFamily, "log_bytes", "log_bytes", "Bytes of the commit log."),
    (
        GaugeMetricFamily,
        "disk_free_bytes",
        "disk_space.free_bytes",
        "Free bytes of the data directory's disk.",
    ),
    (GaugeMetricFamily, "disk_size_bytes", "disk_space.total_bytes", "Size of the data directory's disk."),
    (GaugeMetricFamily, "disk_low", "disk_space.is_low", "1 while the disk is nearly full."),
    (
        GaugeMetricFamily,
        "disk_full",
        "disk_space.is_full",
        "1 while sends are refused because the disk is full.",
    ),
    (
        GaugeMetricFamily,
        "directory_gone",
        "disk_space.is_gone",
        "1 while the data directory is removed or unmounted.",
    ),
    (
        GaugeMetricFamily,
        "healthy",
        "health.is_ok",
        "1 while /healthz answers 200, 0 while something is wrong.",
    ),
    (
        GaugeMetricFamily,
        "damaged_frames",
        "damage.frames",
        "Frames of the commit log known to be damaged; neighbours without messages count once.",
    ),
    (
        GaugeMetricFamily,
        "damaged_messages",
        "damage.messages",
        "Messages in damaged frames that wait or are in a queue; they are not delivered.",
    ),
    (
        GaugeMetricFamily,
        "damaged_pending_messages",
        "damage.pending",
        "Messages in damaged frames that wait; retention keeps the log from the first one on.",
    ),
)

_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


def family(kind: _Family, name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    """A metric with labels; `values` by the tuple of them."""
    made = kind(f"tidemill_{name}", text, labels=labels)
    for names, value in values.items():
        made.add_metric(names, value)
    return made


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tidemill_{name}", text, value=float(value))


class BrokerCollector(Collector):
    """One broker's figures."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        status = self._broker.status()
        yield from self._by_topic(status)
        yield from self._by_group()
        yield from self._by_level(status)
        for kind, name, path, text in _OF_STATUS:
            yield kind(f"tidemill_{name}", text, value=float(attrgetter(path)(status)))
        yield from self._on_the_way(status)
        yield from self._health(status)
        yield from self._histograms()
        yield from self._settings(status)

    def _by_topic(self, status: Status) -> Iterator[Metric]:
        views = [view for view in self._broker.views.topics() if may(LOOK, topic=view.name)]
        for kind, name, attribute, text in _OF_TOPIC:
            values = {(view.name,): float(getattr(view, attribute)) for view in views}
            yield family(kind, name, text, ["topic"], values)
        clamped = {(view.name,): status.clamped_levels.get(view.name, 0) for view in views}
        text = "Messages whose delay level was above the highest, which was used."
        yield family(CounterMetricFamily, "levels_clamped", text, ["topic"], clamped)

    def _by_group(self) -> Iterator[Metric]:
        sees_all = may_everywhere(LOOK)
        lag, unsettled = {}, {}
        for group in self._broker.views.groups():
            for topic in group.lag:
                if sees_all or may_compare(group.name, topic):
                    lag[group.name, topic] = group.lag[topic]
                    unsettled[group.name, topic] = group.unsettled[topic]
        labels = ["group", "topic"]
        yield family(GaugeMetricFamily, "group_lag", "Messages not handed out yet.", labels, lag)
        text = "Messages handed out and not settled."
        yield family(GaugeMetricFamily, "group_unsettled", text, labels, unsettled)

    def _by_level(self, status: Status) -> Iterator[Metric]:
        views = {(str(view.level), f"{view.delay_ms / 1000:g}"): view for view in status.levels}
        for name, text, value_of in _OF_LEVEL:
            values = {labels: value_of(view) for labels, view in views.items()}
            yield family(GaugeMetricFamily, name, text, ["level", "delay_seconds"], values)

    def _on_the_way(self, status: Status) -> Iterator[Metric]:
        late, pipeline = status.lateness_ms, status.pipeline
        waits = {
            (reason,): sum(w.messages for w in status.waits if w.waits_for is reason) for reason in WaitReason
        }
        text = "Messages due and not in their topic yet, by what they wait for."
        yield family(GaugeMetricFamily, "release_waiting_messages", text, ["waits_for"], waits)
        held = {(what,): float(status.holds.since_ms(what) is not None) for what in Held}
        text = "1 while an operator holds releases or absorbing."
        yield family(GaugeMetricFamily, "held", text, ["what"], held)
        yield gauge("lateness_p99_seconds", "99th percentile of recent lateness.", late.p99_ms / 1000)
        yield gauge("lateness_max_seconds", "Worst lateness since the start.", late.max_ms / 1000)
        text = "Delay of the slowest shard; 0 while it keeps up."
        yield gauge("pipeline_lag_seconds", text, pipeline.lag_ms / 1000)
        text = "What runs the timer (runner), and the state of Spark (state)."
        facts = {"runner": pipeline.runner, "state": pipeline.state}
        yield InfoMetricFamily("tidemill_pipeline", text, value=facts)
        text = "Requests and messages refused, by protocol (grpc, http, flight) and error code."
        counts = dict(sorted(REJECTS.counts().items()))
        yield family(CounterMetricFamily, "rejects", text, ["protocol", "code"], counts)

    def _health(self, status: Status) -> Iterator[Metric]:
        failures = {(service,): count for service, count in sorted(status.health.failures.items())}
        text = "Steps of the broker's services that failed."
        yield family(CounterMetricFamily, "service_failures", text, ["service"], failures)
        repairs = {(kind.value,): count for kind, count in self._broker.store.repairs.counts().items()}
        text = "Rows and files that failed their checksum and were derived again from the commit log."
        yield family(CounterMetricFamily, "derived_again", text, ["kind"], repairs)

    def _histograms(self) -> Iterator[Metric]:
        for name, text, found in (
            (
                "release_lateness_seconds",
                "From due time to visible in the topic.",
                self._broker.releaser.lateness.histogram,
            ),
            ("commit_seconds", "Time of one sync of the commit log.", self._broker.store.sync_durations),
        ):
            yield HistogramMetricFamily(
                f"tidemill_{name}", text, buckets=found.cumulative(), sum_value=found.sum_s
            )

    def _settings(self, status: Status) -> Iterator[Metric]:
        settings = self._broker.settings
        yield gauge("lead_seconds", "How far the timer works ahead.", settings.lead_ms / 1000)
        text = "Limit of in_flight_send_bytes; sends beyond it are refused."
        yield gauge("in_flight_send_limit_bytes", text, settings.in_flight_bytes_max)
        facts = {"version": version("tidemill"), "broker": self._broker.id}
        yield InfoMetricFamily("tidemill_build", "The version that runs.", value=facts)


class EndpointCollector(Collector):
    """The counters of the gRPC endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        calls = {(method,): count for method, count in sorted(self._gateway.call_counts.copy().items())}
        yield family(CounterMetricFamily, "grpc_calls", "gRPC calls taken, by method.", ["method"], calls)
        text = "gRPC calls not answered yet, waiting polls among them."
        yield gauge("grpc_calls_in_flight", text, self._gateway.calls_under_way)
        yield gauge("grpc_clients", "Clients with an open telemetry stream.", len(self._gateway.sessions))


def registry_of(broker: Broker, gateway: Gateway | None = None) -> CollectorRegistry:
    """A registry with the metrics of this broker, its gRPC endpoint and its process."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    registry.register(PipelineCollector(broker))
    if gateway is not None:
        registry.register(EndpointCollector(gateway))
    ProcessCollector(registry=registry)
    return registry
