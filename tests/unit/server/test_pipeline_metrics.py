"""Figures of timed messages: what was asked for, the steps, the load ahead, lateness, the overdue."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.core import Metric

from helpers.asgi_caller import AsgiCaller
from helpers.open_app import OpenApp
from helpers.small_broker import START_MS, SmallBroker
from tidemill.core.model import Draft
from tidemill.server import pipeline_metrics
from tidemill.server.pipeline_metrics import PipelineCollector
from tidemill.store.topic_histograms import DELAY_BOUNDS_MS, TopicHistogram, TopicNames

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def _family(small: SmallBroker, name: str) -> Metric:
    (family,) = [m for m in PipelineCollector(small.broker).collect() if m.name == f"tidemill_{name}"]
    return family


def _values(small: SmallBroker, name: str, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in _family(small, name).samples}


def _buckets(small: SmallBroker, name: str, label: str, value: str) -> dict[str, float]:
    """What each bucket of a histogram holds, without what is in those below it."""
    found, before = {}, 0.0
    for sample in _family(small, name).samples:
        if sample.name.endswith("_bucket") and sample.labels[label] == value:
            if sample.value > before:
                found[sample.labels["le"]] = sample.value - before
            before = sample.value
    return found


def _sum(small: SmallBroker, name: str, label: str, value: str) -> float:
    (found,) = [
        sample.value
        for sample in _family(small, name).samples
        if sample.name.endswith("_sum") and sample.labels[label] == value
    ]
    return found


# -- what was asked for -------------------------------------------------------------------------------


def test_delays_that_were_asked_for_are_counted_by_topic(small) -> None:
    for delay_ms in (1, 1_000, 1_001, _DAY_MS, 400 * _DAY_MS):
        small.send("a", delay_ms=delay_ms)
    small.send("a")  # not timed
    small.broker.send([Draft("b", b"%d" % n, delay_ms=20_000 + n) for n in range(300)])
    small.send("b", deliver_at_ms=START_MS - 5_000)  # already due: a delay of nothing
    asked = "requested_delay_seconds"
    expected = {"1.0": 2.0, "5.0": 1.0, "86400.0": 1.0, "315360000.0": 1.0}
    assert _buckets(small, asked, "topic", "a") == expected
    assert _buckets(small, asked, "topic", "b") == {"1.0": 1.0, "30.0": 300.0}
    assert _sum(small, asked, "topic", "b") == pytest.approx(300 * 20 + sum(range(300)) / 1000)


def test_a_message_that_is_moved_was_asked_for_once(small) -> None:
    receipt = small.send("a", delay_ms=20_000)
    small.broker.reschedule([receipt.handle], delay_ms=_DAY_MS)
    assert _buckets(small, "requested_delay_seconds", "topic", "a") == {"30.0": 1.0}


def test_delays_begin_with_the_process_and_kinds_do_not(small) -> None:
    small.send("a", delay_ms=20_000)
    small.send("a")
    small.reopen()
    assert _buckets(small, "requested_delay_seconds", "topic", "a") == {}
    assert _values(small, "timed_messages", "topic") == {"a": 1}
    assert _values(small, "immediate_messages", "topic") == {"a": 1}


def test_timed_and_immediate_stay_what_they_were_whatever_becomes_of_a_message(small) -> None:
    kept = [small.send("a", delay_ms=1_000 * n) for n in range(20, 30)]
    for _ in range(3):
        small.send("a")
    small.broker.cancel([kept[0].handle])
    small.broker.reschedule([kept[1].handle], delay_ms=_HOUR_MS)
    small.advance(25_000)
    assert (_values(small, "timed_messages", "topic"), _values(small, "immediate_messages", "topic")) == (
        {"a": 10},
        {"a": 3},
    )


def test_topics_beyond_the_number_are_summed(small) -> None:
    names = TopicNames(lambda: small.broker.store.topics, named_max=2)
    small.broker.store.topic_names = names
    delays = TopicHistogram(names, DELAY_BOUNDS_MS)
    small.broker.store.requested_delays = small.broker.store.indexes.requested_delays = delays
    for number in range(5):
        small.send(f"t{number}", delay_ms=_HOUR_MS)
        small.send(f"t{number}", delay_ms=_HOUR_MS)
    _family(small, "requested_delay_seconds")
    assert _values(small, "timed_messages", "topic") == {"t0": 2, "t1": 2, "(other)": 6}
    assert _buckets(small, "requested_delay_seconds", "topic", "(other)") == {"3600.0": 6.0}
    # The name of a topic that is deleted goes to one that was not met before, and what was summed stays so.
    small.broker.topics.delete("t0", is_forced=True)
    small.send("new", delay_ms=_HOUR_MS)
    assert _buckets(small, "requested_delay_seconds", "topic", "new") == {"3600.0": 1.0}
    assert _buckets(small, "requested_delay_seconds", "topic", "(other)") == {"3600.0": 6.0}
    assert _values(small, "timed_messages", "topic") == {"new": 1, "t1": 2, "(other)": 6}


def test_topics_are_named_to_those_who_may_look_at_them(small, monkeypatch) -> None:
    names = TopicNames(lambda: small.broker.store.topics, named_max=2)
    small.broker.store.topic_names = names
    for topic in ("a", "b", "c"):
        small.send(topic, delay_ms=_HOUR_MS)
    monkeypatch.setattr(pipeline_metrics, "may", lambda verb, topic: topic == "b")
    monkeypatch.setattr(pipeline_metrics, "may_everywhere", lambda verb: False)
    assert _values(small, "timed_messages", "topic") == {"b": 1}


# -- what the steps did -------------------------------------------------------------------------------


def _work(small: SmallBroker) -> dict[str, float]:
    names = ("absorbed", "handed_over", "rolled", "already_due")
    return {name: _values(small, f"pipeline_{name}_messages", "runner")["embedded"] for name in names}


def test_absorbed_handed_over_rolled_and_already_due_are_counted(small) -> None:
    small.send("t", delay_ms=60_000)
    small.send("t", delay_ms=40_000)
    small.broker.run_due()
    assert _work(small) == {"absorbed": 0, "handed_over": 0, "rolled": 0, "already_due": 0}
    small.advance(12_000)  # a step is called for: one is due within the lead by now, one is placed
    assert _work(small) == {"absorbed": 2, "handed_over": 1, "rolled": 0, "already_due": 1}
    small.advance(60_000)
    assert _work(small) == {"absorbed": 2, "handed_over": 2, "rolled": 0, "already_due": 1}
    small.send("t", delay_ms=4_000_000)  # beyond the roll window of 1024 s
    for _ in range(10):
        small.advance(401_000)
    work = _work(small)
    assert (work["absorbed"], work["handed_over"]) == (3, 3)
    assert work["rolled"] >= 2


def test_every_stage_and_the_whole_step_are_timed(small) -> None:
    small.send("t", delay_ms=60_000)
    small.advance(100_000)
    family = _family(small, "pipeline_stage_seconds")
    counts = {s.labels["stage"]: s.value for s in family.samples if s.name.endswith("_count")}
    steps = counts.pop("release"), counts
    assert steps[0] == 1
    assert set(steps[1]) == {"scan", "due", "absorb", "hand-over"}
    (whole,) = set(steps[1].values())
    assert whole >= 2
    assert all(_sum(small, "pipeline_stage_seconds", "stage", stage) > 0 for stage in (*counts, "release"))
    step = _family(small, "pipeline_step_seconds").samples
    counted = [s for s in step if s.name.endswith("_count")]
    assert {s.labels["runner"]: s.value for s in counted} == {"embedded": whole, "spark": 0}


# -- the load ahead -----------------------------------------------------------------------------------


def test_the_fullest_minute_and_slot_of_the_next_hour(small) -> None:
    minute_ms = START_MS // 60_000 * 60_000
    small.broker.send([Draft("a", b"", deliver_at_ms=minute_ms + 600_000) for _ in range(12)])
    small.broker.send([Draft("b", b"", deliver_at_ms=minute_ms + 601_000 + n) for n in range(3)])
    small.broker.send([Draft("b", b"", deliver_at_ms=minute_ms + 2 * _HOUR_MS) for n in range(50)])
    small.advance(10_000)  # all are absorbed
    (peak,) = _family(small, "peak_minute_messages").samples
    (at,) = _family(small, "peak_minute_timestamp_seconds").samples
    assert (peak.value, at.value * 1000) == (15, minute_ms + 600_000)
    (fullest,) = _family(small, "wheel_fullest_slot_messages").samples
    assert fullest.value == 12
    slots = _values(small, "wheel_slots", "holds")
    assert (slots["1"], slots["10"], slots["100"]) == (1, 1, 0)
    assert sum(slots.values()) == 1024  # the roll window of the small wheel


def test_a_broker_without_a_wheel_shows_no_slots(tmp_path: Path) -> None:
    small = SmallBroker(tmp_path / "data", timer_store="rocksdb")
    small.send("a", delay_ms=120_000)
    small.advance(10_000)
    assert _family(small, "wheel_slots").samples == []
    (peak,) = _family(small, "peak_minute_messages").samples
    assert peak.value == 1
    small.close()


# -- lateness and the overdue -------------------------------------------------------------------------


def test_lateness_is_counted_by_topic(small) -> None:
    small.send("late", level=1)
    small.send("slow", delay_ms=50_000)
    small.clock.advance(1_007)
    small.broker.run_due()
    small.advance(60_000)
    assert _buckets(small, "topic_lateness_seconds", "topic", "late") == {"0.01": 1.0}
    assert _buckets(small, "topic_lateness_seconds", "topic", "slow") == {"0.0": 1.0}


def _oldest(small: SmallBroker) -> dict[str, float]:
    ages = _values(small, "oldest_overdue_seconds", "waits_for")
    assert "none" in ages
    return {reason: age for reason, age in ages.items() if age}


def test_the_oldest_overdue_message_of_each_reason_is_known_by_its_age(small) -> None:
    for topic in ("still", "slow", "free"):
        small.broker.send([Draft(topic, b"", delay_ms=1_000 * n) for n in range(1, 4)])
    small.broker.topics.change("still", is_paused=True)
    small.broker.topics.change("slow", release_rate_max=1)
    assert _oldest(small) == {}
    small.clock.advance(4_500)
    small.broker.run_due()
    ages = _oldest(small)
    assert set(ages) == {"pause", "rate"}
    assert ages["pause"] == 3.5
    assert ages["rate"] <= 2.5
    small.broker.topics.change("still", is_paused=False)
    small.advance(10_000)
    assert _oldest(small) == {}


def test_an_overdue_message_that_nothing_explains_is_shown(small) -> None:
    small.send("near", delay_ms=1_000)
    small.clock.advance(31_000)  # and no step is taken
    assert _oldest(small) == {"none": 30.0}
    small.advance(1)
    small.send("far", delay_ms=60_000)
    small.clock.advance(200_000)  # nothing has read it: the due counts alone know of it
    (view,) = small.broker.status().overdue
    assert (view.waits_for, view.topic) == (None, "far")
    assert 80 < _oldest(small)["none"] <= 140
    small.advance(1)
    assert _oldest(small) == {}


@pytest.mark.parametrize(("what", "reason"), [("releases", "hold"), ("absorbing", "absorb")])
def test_what_an_operator_holds_is_a_reason(small, what, reason) -> None:
    small.broker.switches.hold(what)
    small.send("t", delay_ms=40_000)
    small.advance(190_000)
    (view,) = small.broker.status().overdue
    assert (view.waits_for, view.topic) in ((reason, "t"), (reason, ""))
    assert 90 < _oldest(small)[reason] <= 150
    small.broker.switches.resume(what)
    small.advance(1)
    assert _oldest(small) == {}


# -- over HTTP ----------------------------------------------------------------------------------------


def test_figures_over_http(small) -> None:
    small.send("t", delay_ms=60_000)
    small.send("t")
    small.broker.topics.change("t", is_paused=True)
    small.advance(10_000)
    small.advance(90_000)
    with AsgiCaller(OpenApp(small.broker)) as http:
        figures, status = http.get("/v1/figures").json(), http.get("/v1/status").json()
    assert [stage["name"] for stage in figures["stages"]] == ["scan", "due", "absorb", "hand-over", "release"]
    assert figures["work"][0] == {
        "runner": "embedded",
        "absorbed": 1,
        "handed_over": 1,
        "rolled": 0,
        "already_due": 0,
    }
    (topic,) = figures["topics"]
    assert (topic["topic"], topic["timed"], topic["immediate"]) == ("t", 1, 1)
    assert topic["delays"][figures["delay_bounds_ms"].index(60_000)] == 1
    assert sum(topic["lateness"]) == 0
    assert status["overdue"] == [{"waits_for": "pause", "topic": "t", "due_ms": START_MS + 60_000}]
