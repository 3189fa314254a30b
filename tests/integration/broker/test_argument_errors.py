"""Arguments of the wrong kind: each has a clear error, and nothing is written, moved or waited for."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.broker.embedded import open_broker
from tidemill.core.config import TICKS_MS, BrokerSettings, settings_from
from tidemill.core.errors import BrokerClosedError, IllegalDelayError, RequestError
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Draft

_NO_NUMBERS = [float("nan"), True, 1.5, "5"]


@pytest.fixture
def waiting(small):
    (receipt,) = small.broker.send([Draft("orders", b"x", delay_ms=DAY_MS, keys=("k",))])
    yield receipt
    (still,) = small.broker.views.pending()
    assert still.deliver_at_ms == receipt.deliver_at_ms


@pytest.mark.parametrize("name", ["deliver_at_ms", "by_ms"])
@pytest.mark.parametrize("value", _NO_NUMBERS)
def test_a_new_time_is_a_whole_number(small, waiting, name, value):
    with pytest.raises(RequestError, match=f"{name} must be a whole number"):
        small.broker.reschedule([waiting.handle], **{name: value})
    with pytest.raises(RequestError, match=name):
        small.broker.reschedule_where("orders", key="k", **{name: value})
    with pytest.raises(RequestError, match=name):
        small.broker.reschedule_where("orders", from_ms=0, to_ms=1 << 60, **{name: value})


def test_a_time_beyond_all_limits_is_named_as_it_was_given(small, waiting):
    with pytest.raises(IllegalDelayError, match=str(10**30 - small.clock.now_ms())):
        small.broker.reschedule([waiting.handle], deliver_at_ms=10**30)


@pytest.mark.parametrize("value", _NO_NUMBERS)
def test_other_times_are_whole_numbers_too(small, waiting, value):
    broker = small.broker
    for call in (
        lambda: broker.cancel_where("orders", from_ms=value, to_ms=1 << 60),
        lambda: broker.advance_to(value),
        lambda: broker.receive("orders", "g", wait_ms=value),
        lambda: broker.change_invisibility([], value),
        lambda: broker.views.pending(limit=value),
        lambda: broker.views.pending(from_ms=value),
    ):
        with pytest.raises(RequestError, match="must be a whole number"):
            call()


def test_names_and_tables_are_what_they_say(small, waiting):
    broker = small.broker
    for call, said in (
        (lambda: broker.ack([None]), "an ack token must be a text"),
        (lambda: broker.ack("receipt"), "ack_tokens must be a list of texts"),
        (lambda: broker.cancel_where("orders", key=None), "key must be a text"),
        (lambda: broker.send_table({"body": [b"x"]}), "an Arrow table or batch"),
        (lambda: broker.views.pending(limit=-1), "limit -1 is not possible"),
    ):
        with pytest.raises(RequestError, match=said):
            call()


def test_the_row_that_is_due_too_late_is_named(small, waiting):
    delays = [1] * 100_000
    delays[70_001] = 10**15
    with pytest.raises(IllegalDelayError, match="row 70001: a delay of"):
        small.broker.send_table(pa.table({"body": [b"x"] * 100_000, "delay_ms": delays}), topic="bulk")


@pytest.mark.parametrize(
    "setting",
    [
        {"shards": 1.5},
        {"lead_ms": "5"},
        {"retention": float("nan")},
        {"queues_per_topic": 0},
        {"segment_bytes": 0},
    ],
)
def test_settings_are_checked_before_a_directory_is_made(tmp_path, setting):
    with pytest.raises(RequestError, match=next(iter(setting))):
        open_broker(tmp_path / "data", **setting)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"roll_window": "1500ms"}, "roll-window 1500 ms is not a whole number of ticks of 1000 ms"),
        ({"roll_window": "10s"}, "roll-window 10000 ms is shorter than the lead; use at least 30000 ms"),
        ({"roll_window": "1y"}, "roll-window is not a duration: '1y'; write it like"),
        ({"roll_window": "25d"}, r"roll-window \(roll_window_ms\) 2160000000 .* use 0 to 2147483647"),
        ({"roll_window": "14d"}, "wheel-slots 1209600 is too few .* use at least 1209603"),
        (
            {"wheel_slots": 100_000},
            "wheel-slots 100000 is too few for a roll window of 172800 slots of 1000 ms",
        ),
        ({"tick": "100ms", "roll_window": "2d"}, "wheel-slots 1209600 is too few .* use at least 1728003"),
        ({"wheel_slots": 1 << 30}, r"wheel-slots \(wheel_slots\) 1073741824 .* use 1 to 33554432"),
    ],
)
def test_a_wheel_that_does_not_fit_its_tick_is_refused(settings, words):
    with pytest.raises(RequestError, match=words):
        settings_from(settings)


@pytest.mark.parametrize("value", [-1, True, 2.5, "many"])
def test_a_limit_of_a_tick_that_is_no_count_is_refused(value):
    words = (
        r"due-per-tick-max \(due_per_tick_max\) (-1 is not possible; use 0 or more|must be a whole number)"
    )
    with pytest.raises(RequestError, match=words):
        settings_from({"due-per-tick-max": value})


def test_the_documented_spans_of_the_wheel_are_those_of_the_settings():
    page = Path(__file__).parents[3] / "docs" / "concepts" / "wheel.md"
    rows = re.findall(
        r"^\| `(\d+)ms` \| ([\d.]+) (hours|days) \| ([\d.]+) (hours|days) \|$", page.read_text(), re.M
    )
    assert [int(row[0]) for row in rows] == list(TICKS_MS)
    unit_ms = {"hours": 3_600_000, "days": 86_400_000}
    for tick, window, window_unit, ring, ring_unit in rows:
        settings = BrokerSettings(tick_ms=int(tick))
        assert float(window) * unit_ms[window_unit] == settings.roll_window_slots * settings.tick_ms
        assert float(ring) * unit_ms[ring_unit] == settings.wheel_slots * settings.tick_ms


def test_a_directory_has_a_name():
    with pytest.raises(RequestError, match="no name"):
        open_broker("")


def test_a_closed_broker_says_so_whatever_is_asked(tmp_path):
    broker = open_broker(tmp_path / "data")
    broker.close()
    for call in (
        broker.status,
        broker.run_due,
        lambda: broker.advance_to(5),
        lambda: broker.views,
        lambda: broker.topics.create("late"),
        lambda: broker.receive("orders", "g"),
    ):
        with pytest.raises(BrokerClosedError, match="closed"):
            call()
