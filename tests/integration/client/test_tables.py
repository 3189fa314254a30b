"""Tables through the client, over Flight and row by row: every row has its own answer."""

from __future__ import annotations

import asyncio
import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidemill
from helpers.http_broker import http_broker
from tidemill.core.clock import SimulatedClock
from tidemill.core.errors import IdInUseError, IllegalPropertyError, RequestError
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Draft, SendResult
from tidemill.server.flight.flight_server import FlightServer

START_MS = 1_800_000_000_000
_MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS + DAY_MS
_MIDNIGHT = datetime.datetime.fromtimestamp(_MIDNIGHT_MS / 1000, datetime.UTC).date()


@pytest.fixture
def served(tmp_path):
    with http_broker(tmp_path / "data", SimulatedClock(START_MS)) as served:
        yield served


@pytest.fixture(params=["flight", "rows"])
def client(served, request):
    with tidemill.Client(served.endpoint) as client:
        if request.param == "rows":
            yield client
            return
        server = FlightServer(served.broker)
        said = {"flight": {"port": server.port, "tls": False, "broker": served.broker.id}}
        client._flight._health = lambda: said
        assert client._flight.is_offered()
        yield client
        client.close()
        server.close()


def _due(answers) -> list[object]:
    """When each is due, counted from the start; what is wrong instead."""
    return [a.deliver_at_ms - START_MS if isinstance(a, SendResult) else str(a) for a in answers]


# -- what a number means --------------------------------------------------------------------------


@pytest.mark.parametrize("is_spoilt", [False, True])  # spoilt by another row, so that rows go one by one
@pytest.mark.parametrize(
    ("name", "column", "ms"),
    [
        ("delay_ms", pa.array([3_600], pa.duration("s")), 3_600_000),
        ("delay_ms", pa.array([1_001], pa.duration("us")), 2),
        ("delay_ms", pa.array([1], pa.duration("ns")), 1),
        ("delay_ms", pa.array([1.25]), 2),
        ("delay_ms", pa.array([Decimal("1.25")]), 2),
        ("delay_ms", pa.array([7], pa.uint8()), 7),
        ("delay_ms", pa.array(["7"]), 7),
        ("deliver_at", pa.array([START_MS * 1_000 + 1], pa.timestamp("us", "Asia/Shanghai")), 1),
        ("deliver_at", pa.array([START_MS * 1_000_000 + 1], pa.timestamp("ns")), 1),
        ("deliver_at", pa.array([_MIDNIGHT], pa.date32()), _MIDNIGHT_MS - START_MS),
        ("deliver_at", pa.array([_MIDNIGHT], pa.date64()), _MIDNIGHT_MS - START_MS),
        ("deliver_at", pa.array(["2027-01-15T08:00:00.0001Z"]), 1),
        ("deliver_at_ms", pa.array([START_MS + 5]), 5),
    ],
)
def test_a_time_of_any_type_means_the_same_both_ways(client, name, column, ms, is_spoilt) -> None:
    table = pa.table({"body": ["x", "y"], name: pa.concat_arrays([column, column])})
    if is_spoilt:
        table = table.append_column("tag", pa.array(["fine", "a|b"]))
    answers = client.schedule(table, topic="t")
    assert _due(answers[:1]) == [ms]
    assert isinstance(answers[1], RequestError) == is_spoilt


def test_spans_and_moments_of_pandas_are_read_in_their_unit(client) -> None:
    spans = pd.DataFrame({"body": ["x"], "delay_ms": pd.to_timedelta([3_600], unit="s").as_unit("s")})
    assert _due(client.schedule(spans, topic="t")) == [3_600_000]
    mixed = pd.DataFrame({"body": ["x", b"y"], "delay_ms": [pd.Timedelta(1, "s"), pd.Timedelta(2, "s")]})
    assert _due(client.schedule(mixed, topic="t")) == [1_000, 2_000]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("deliver_at", pa.array([1], pa.duration("s"))),
        ("deliver_at", pa.array([1], pa.time32("s"))),
        ("delay_ms", pa.array([1], pa.time64("ns"))),
        ("delay_ms", pa.array([1], pa.timestamp("s"))),
        ("delay_ms", pa.array([True])),
        ("level", pa.array([True])),
    ],
)
def test_a_type_that_is_no_time_is_refused_for_the_whole_table(client, name, column) -> None:
    with pytest.raises(RequestError, match=f"column {name} must hold"):
        client.schedule(pa.table({"body": ["x"], name: column}), topic="t")
    assert client.status().sent == 0


@pytest.mark.parametrize("value", [np.timedelta64(5, "s"), True, datetime.time(1), "30m", [1]])
def test_a_value_that_is_no_time_is_refused_for_its_row(client, value) -> None:
    for name in ("delay_ms", "deliver_at", "level"):
        if (name, value) == ("deliver_at", "30m"):
            continue
        first, second = client.schedule([{"body": "x", name: value}, {"body": "y"}], topic="t")
        assert isinstance(first, RequestError) and isinstance(second, SendResult)


# -- a wrong row is answered in its place ---------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"body": [None, "x", "x"]}, "body is null"),
        ({"properties": ["{", "", None]}, "JSON object"),
        ({"properties": ["[" * 100_000, "", None]}, "JSON object"),
        ({"deliver_at": ["+30m", None, "2027-02-01"]}, "is a delay"),
        ({"delay_ms": ["soon", "5.0", None]}, "not a number"),
        ({"level": [1.5, 1.0, None]}, "whole number"),
        ({"topic": [None, "t", "t"]}, "names no topic"),
        ({"key": [1, 2, 3], "tag": ["a|b", "", ""]}, "tag"),
        ({"id": [1, 2, 3], "tag": ["a|b", "", ""]}, "tag"),
        ({"deliver_at": [1, None, None], "delay_ms": [1, 1, None]}, "only one of"),
        ({"once": ["perhaps", "false", "keep"], "key": ["a", "b", "c"]}, "perhaps"),
    ],
)
def test_a_wrong_row_has_its_own_error_and_the_others_are_stored(client, wrong, said) -> None:
    table = pa.table({"body": ["a", "b", "c"]} | wrong)
    answers = client.schedule(table, topic=None if "topic" in wrong else "t")
    assert [isinstance(answer, SendResult) for answer in answers] == [False, True, True]
    assert isinstance(answers[0], RequestError) and said in str(answers[0])
    assert client.status().sent == 2


def test_a_wrong_row_among_many_loses_no_handle_of_another(client) -> None:
    count = 9_000
    bodies = pa.array([None if n == 8_500 else "x" for n in range(count)])
    answers = client.schedule(pa.table({"body": bodies, "delay_ms": [60_000] * count}), topic="t")
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, SendResult)] == [8_500]
    assert client.status().pending == count - 1


def test_texts_that_are_none_and_values_without_room_are_the_faults_of_their_rows(client) -> None:
    raw = pa.array([b"\xff", b"good"], pa.binary())
    keys = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    answers = client.schedule(pa.table({"body": ["a", "b"], "key": keys}), topic="t")
    assert [isinstance(answer, SendResult) for answer in answers] == [False, True]


def test_what_pandas_calls_missing_is_missing(client) -> None:
    frame = pd.DataFrame(
        {
            "body": ["a", b"b"],
            "delay_ms": [pd.NA, 5],
            "key": [float("nan"), "k"],
            "deliver_at": [pd.NaT, None],
        }
    )
    answers = client.schedule(frame, topic="t")
    assert [answer.deliver_at_ms for answer in answers] == [None, START_MS + 5]


def test_whole_numbers_as_ids_and_keys_are_texts(client) -> None:
    for table in (pa.table({"body": ["a"], "id": [17], "key": [4]}),):
        (answer,) = client.schedule(table, topic="t")
        assert answer.id == "17"
    assert client.find("t", "4")[0].id == "17"


@pytest.mark.parametrize(
    ("table", "topic", "said"),
    [
        (pa.table({"body": ["x"], "colour": ["red"]}), "t", "unknown columns"),
        (pd.DataFrame({"body": ["x"], "colour": ["red"]}), "t", "unknown columns"),
        (pa.table({"body": ["x"]}), None, "its topic"),
        (pa.table({"key": ["x"]}), "t", "needs a `body`"),
        (pa.table([pa.array(["x"])] * 2, names=["body", "body"]), "t", "more than once"),
        ({"body": ["x"]}, "t", "is not a table"),
        ("body", "t", "is not a table"),
        (5, "t", "is not a table"),
    ],
)
def test_a_table_that_is_wrong_as_a_whole_is_refused_whole(client, table, topic, said) -> None:
    with pytest.raises(RequestError, match=said):
        client.schedule(table, topic=topic)
    assert client.status().sent == 0


def test_an_empty_table_is_nothing(client) -> None:
    assert list(client.schedule(pa.table({"colour": pa.array([], pa.string())}))) == []
    assert list(client.schedule(pd.DataFrame())) == []
    assert list(client.schedule([])) == []


def test_rows_are_mappings_and_answered_one_by_one(client) -> None:
    rows = [{"body": "a"}, "b", {"body": "c", "colour": "red"}, {}, {"body": "e", "properties": {"p": "q"}}]
    answers = client.schedule((row for row in rows), topic="t")
    assert [isinstance(answer, SendResult) for answer in answers] == [True, False, False, False, True]
    (broken,) = client.schedule([{"body": "f", "properties": "{"}], topic="t")
    assert isinstance(broken, IllegalPropertyError)


def test_what_is_no_draft_is_refused_in_its_place(client, served) -> None:
    async def scene() -> list[object]:
        async with tidemill.AsyncClient(served.endpoint) as client:
            many = await client.send_many([Draft("t", b"1"), "a", Draft("t", b"2")])
            return [*many, *await client.schedule([{"body": None}, {"body": "3"}], topic="t")]

    for answers in (client.send_many([Draft("t", b"1"), "a", Draft("t", b"2")]), asyncio.run(scene())):
        assert [isinstance(answer, SendResult) for answer in answers[:3]] == [True, False, True]
        assert str(answers[1]) == "a message must be a Draft, str was given"
    assert [isinstance(answer, SendResult) for answer in answers[3:]] == [False, True]


# -- once -----------------------------------------------------------------------------------------


def test_once_without_key_or_id_is_refused_both_ways_and_nothing_of_it_is_stored(client) -> None:
    columns = {"body": ["a", "b", "c"], "once": [True, True, False], "delay_ms": [60_000] * 3}
    for _ in range(2):
        answers = client.schedule(pa.table({**columns, "key": ["k", None, None]}), topic="t")
        assert list(answers.errors) == [1]
        assert "once needs a key, or an id of your own" in str(answers[1])
    assert len(client.pending("t")) == 3  # one by its key, and two of those that are not sent once
    answers = client.schedule(pa.table({**columns, "once": ["keep", "no", ""]}), topic="t")
    assert list(answers.errors) == [0]


def test_once_with_an_id_counts_for_as_long_as_the_message_is_kept_both_ways(client, served) -> None:
    table = pa.table(
        {"body": ["a", "b"], "id": ["x1", "x2"], "once": [True, False], "delay_ms": [60_000] * 2}
    )
    client.schedule(table, topic="t")
    served.broker.advance_to(served.broker.clock.now_ms() + 2 * DAY_MS // 24)
    answers = client.schedule(table, topic="t")
    assert [answer.is_repeat for answer in answers] == [True, False]
    assert client.send("t", "a", id="x1", once=True).is_repeat


def test_an_id_of_another_message_is_refused_both_ways_and_the_other_rows_are_stored(client) -> None:
    client.send("t", "first", id="x1", delay="1h")
    table = pa.table({"body": ["a", "second", "c"], "id": ["x0", "x1", "x2"], "delay_ms": [60_000] * 3})
    for is_repeat in (False, True):
        answers = client.schedule(table, topic="t")
        assert list(answers.errors) == [1]
        assert isinstance(answers[1], IdInUseError)
        assert "id 'x1' in topic 't' belongs to another message, with another body" in str(answers[1])
        assert [answers[row].is_repeat for row in (0, 2)] == [is_repeat] * 2
    with pytest.raises(IdInUseError):
        client.send("t", "second", id="x1")
    assert {row.id for row in client.pending("t")} == {"x0", "x1", "x2"}


def test_once_of_an_odd_type_is_the_brokers_to_refuse(client) -> None:
    table = pa.table({"body": ["a"], "once": pa.array([["yes"]]), "key": ["k"]})
    assert list(client.schedule(table, topic="t").errors) == [0]


# -- answers --------------------------------------------------------------------------------------


def test_objects_with_other_members_than_their_neighbours_are_properties(client) -> None:
    table = pa.Table.from_pylist(
        [
            {"body": "one", "properties": {"a": "1"}},
            {"body": "two", "properties": {"b": "2"}},
            {"body": "three", "properties": None},
        ]
    )
    assert client.schedule(table, topic="t").errors == {}
    found = client.receive_batch("t", "g")
    assert {m.body: dict(m.properties) for m in found} == {
        b"one": {"a": "1"},
        b"two": {"b": "2"},
        b"three": {},
    }


def test_errors_are_reported_however_the_rows_came(client, served) -> None:
    rows = [{"body": "a"}, {"body": None}]
    assert list(client.schedule(rows, topic="t").errors) == [1]

    async def schedule() -> list[int]:
        async with tidemill.AsyncClient(served.endpoint) as tasks:
            return list((await tasks.schedule(pa.table({"body": ["a", None]}), topic="t")).errors)

    assert asyncio.run(schedule()) == [1]


def test_a_broker_that_never_had_a_flight_endpoint_is_reported_at_once(served) -> None:
    with tidemill.Client(served.endpoint) as client:
        client._flight._closing = None  # a caller that waits for a retry fails
        with pytest.raises(tidemill.UnreachableError, match="no Flight endpoint"):
            client.tables.pending()


def test_rows_to_cancel_are_a_table_or_refused_in_words(served) -> None:
    with (
        tidemill.Client(served.endpoint) as client,
        pytest.raises(RequestError, match="a list is not a table"),
    ):
        client.tables.cancel([{"id": "x"}])


# -- jitter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arrow", "pandas", "rows"])
def test_the_jitter_of_a_table_moves_each_row_later_and_an_equal_id_equally(client, kind) -> None:
    rows = [{"body": "x", "delay_ms": 60_000, "id": f"id-{n}"} for n in range(30)]
    table = {"arrow": pa.Table.from_pylist, "pandas": pd.DataFrame, "rows": list}[kind](rows)
    due = _due(client.schedule(table, topic="orders", jitter="30s"))
    assert all(60_000 <= ms <= 90_000 for ms in due) and len(set(due)) > 25
    assert _due(client.schedule(table, topic="orders", jitter="30s")) == due
    spread = [row | {"jitter_ms": 30_000} for row in rows]
    assert _due(client.schedule(pa.Table.from_pylist(spread), topic="others")) == due
    assert _due([client.send("single", "x", delay="60s", jitter=30, id="id-7")]) == due[7:8]
    (sent,) = client.send_many([Draft("many", b"x", delay_ms=60_000, jitter_ms=30_000, id="id-7")])
    assert _due([sent]) == due[7:8]


def test_a_wrong_jitter_of_a_row_is_its_own_fault(client) -> None:
    table = pa.table({"body": ["a", "b", "c"], "delay_ms": [5, 5, None], "jitter_ms": [-1, 0, 9]})
    first, second, third = _due(client.schedule(table, topic="orders"))
    assert first == "jitter -1 ms is not possible; use 0 or more"
    assert second == 5
    assert third == "jitter 9 ms needs a delay or a delivery time as well"


@pytest.mark.parametrize("jitter", ["soon", -5, datetime.timedelta(seconds=-1), object()])
def test_a_jitter_that_is_none_is_refused_before_anything_is_sent(client, jitter) -> None:
    with pytest.raises(RequestError, match="jitter"):
        client.schedule(pa.table({"body": ["a"], "delay_ms": [5]}), topic="orders", jitter=jitter)
    with pytest.raises(RequestError, match="jitter"):
        client.send("orders", "x", delay="5s", jitter=jitter)
    assert client.topics.list() == []


def test_a_jitter_that_is_given_twice_is_refused(client) -> None:
    table = pa.table({"body": ["a"], "delay_ms": [5], "jitter_ms": [5]})
    if client._flight.is_offered():
        with pytest.raises(RequestError, match="the jitter is given twice"):
            client.schedule(table, topic="orders", jitter=5)
    else:
        assert "the jitter is given twice" in _due(client.schedule(table, topic="orders", jitter=5))[0]


def test_a_broker_that_knows_no_jitter_is_named(client, monkeypatch) -> None:
    old = RequestError("not a batch of messages: it begins with TMB1, a length and a JSON object")

    def carry(way, head, content, *rest):
        if content[:4] != b"TMB1":
            raise old
        return carried(way, head, content, *rest)

    carried = client._carry
    monkeypatch.setattr(client, "_carry", carry)
    drafts = [Draft("t", b"x", delay_ms=5), Draft("t", b"y", delay_ms=5, jitter_ms=5)]
    stored, refused = client.send_many(drafts)
    assert isinstance(stored, SendResult)
    assert str(refused) == "the broker is an older version without jitter; leave it out"


def test_tasks_may_use_jitter_too(served) -> None:
    async def sent():
        async with tidemill.AsyncClient(served.endpoint) as client:
            rows = [{"body": "x", "delay_ms": 60_000, "id": "a"}]
            alone = await client.send("single", "x", delay="60s", jitter="30s", id="a")
            return [alone, *await client.schedule(rows, topic="orders", jitter="30s")]

    due = _due(asyncio.run(sent()))
    assert due[0] == due[1] and 60_000 <= due[0] <= 90_000
