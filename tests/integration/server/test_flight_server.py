"""The Flight server and plain pyarrow: put, get, cancel, errors, permissions."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.small_broker import START_MS, SmallBroker
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.transport.endpoint import Endpoint
from tidemill.client.transport.retrying import RetryPolicy
from tidemill.core.errors import UnauthorizedError
from tidemill.core.limits import FRAME_ROWS_MAX
from tidemill.core.model import Draft, Handle
from tidemill.server.flight.flight_server import FlightServer
from tidemill.server.flight.flight_traffic import FlightLimits
from tidemill.server.security.permissions import Patterns, Rule, User, Verb
from tidemill.server.security.rates import Rates


@contextmanager
def _door(small, **options):
    server = FlightServer(small.broker, **options)
    client = flight.connect(f"grpc://127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        client.close()
        server.close()


@pytest.fixture
def client(small):
    with _door(small) as client:
        yield client


def _put(client, *batches, topic="t", options=None):
    """Put batches one after another; their answers."""
    descriptor = flight.FlightDescriptor.for_path(*([topic] if topic else []))
    writer, answers = client.do_put(descriptor, batches[0].schema, options or flight.FlightCallOptions())
    found = []
    try:
        for batch in batches:
            writer.write_batch(batch)
            content = answers.read()
            if content is None:
                break
            found.append(pa.ipc.open_stream(content).read_all())
    finally:
        writer.close()
    return found


def _get(client, options=None, **request):
    return client.do_get(flight.Ticket(json.dumps(request).encode()), options).read_all()


def _cancel(client, table, *, keys=(), **command):
    """Cancel the rows of a table; with `keys` each row in a batch of its own, under that request id."""
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"do": "cancel", **command}).encode())
    writer, reader = client.do_exchange(descriptor)
    writer.begin(table.schema)
    if keys:
        for batch, key in zip(table.to_batches(max_chunksize=1), keys, strict=True):
            writer.write_with_metadata(batch, key)
    else:
        writer.write_table(table)
    writer.done_writing()
    answers = reader.read_all()["answer"].to_pylist()
    writer.close()
    return answers


def _batch(count=3, delay_ms=60_000, **columns):
    return pa.record_batch(
        {"body": [f"b{n}" for n in range(count)], "delay_ms": np.full(count, delay_ms), **columns}
    )


# -- put ------------------------------------------------------------------------------------------


def test_every_batch_is_answered_with_ids_seqs_and_times(small, client) -> None:
    first, second = _put(client, _batch(3), _batch(2, delay_ms=5))
    assert first["seq"].to_pylist() == [0, 1, 2]
    assert second["seq"].to_pylist() == [3, 4]
    assert second["deliver_at_ms"].to_pylist() == [START_MS + 5] * 2
    assert first.schema.metadata == {b"broker": small.broker.id.encode(), b"batch": b"0"}
    assert not any(first["is_repeat"].to_pylist())
    small.advance(10)
    assert sorted(small.bodies("t")) == [b"b0", b"b1"]


def test_a_topic_column_spreads_a_batch(small, client) -> None:
    _put(client, _batch(2, topic=["a", "b"]), topic=None)
    assert [p.topic for p in small.broker.views.pending()] == ["a", "b"]


def test_levels_are_taken_row_by_row(small, client) -> None:
    table = pa.record_batch({"body": ["a", "b", "c"], "level": pa.array([1, None, 99])})
    (answer,) = _put(client, table)
    highest = len(small.broker.settings.level_delays_ms)
    due = [START_MS + small.broker.settings.level_delays_ms[at] for at in (0, highest - 1)]
    assert answer["deliver_at_ms"].to_pylist() == [due[0], -1, due[1]]
    assert _get(client, table="pending", columns=["level"])["level"].to_pylist() == [1, highest]


def test_a_put_again_with_once_keys_doubles_nothing(small, client) -> None:
    batch = _batch(3, key=["x", "y", "z"], once=[True] * 3)
    (first,) = _put(client, batch)
    (again,) = _put(client, batch)
    assert again.select(["id", "seq"]).equals(first.select(["id", "seq"]))
    assert again["is_repeat"].to_pylist() == [True] * 3
    assert small.broker.status().pending == 3


def test_once_keys_of_single_sends_and_of_the_same_batch_are_known(small, client) -> None:
    sent = small.send("t", b"single", delay_ms=9_000, keys=("other", "x"))
    once = pa.array([None, True, True, True])
    (answer,) = _put(client, _batch(4, key=["y", "x", "y", "w"], once=once))
    assert answer["seq"].to_pylist() == [1, 0, 1, 2]
    assert answer["id"][1].as_py() == sent.id
    assert answer["id"][2] == answer["id"][0]
    assert answer["deliver_at_ms"][1].as_py() == sent.deliver_at_ms
    assert small.broker.status().pending == 3
    small.advance(10_000)
    (after,) = _put(client, _batch(1, key=["x"], once=["keep"]))
    assert after["is_repeat"].to_pylist() == [False]


def test_ids_and_once_together(client) -> None:
    first = _batch(2, id=["i", "j"], key=["k", "k"], once=[True, True])
    (answer,) = _put(client, first)
    assert answer["seq"].to_pylist() == [0, 0]
    (again,) = _put(client, first)
    assert again["seq"].to_pylist() == [0, 0]
    assert again["id"].to_pylist() == ["i", "i"]


def test_a_bad_batch_names_its_number_and_leaves_the_others(small, client) -> None:
    bad = _batch(2, tag=["fine", "a|b"])
    with pytest.raises(flight.FlightServerError, match="batch 1 was not stored") as caught:
        _put(client, _batch(2, tag=["", ""]), bad)
    assert json.loads(caught.value.extra_info)["code"] == "illegal-tag"
    assert small.broker.status().pending == 2


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"once": [True], "key": [""]}, "illegal-key"),
        ({"once": ["replace"], "key": ["k"]}, "bad-request"),
        ({"level": [1]}, "bad-request"),
        ({"strange": [1]}, "bad-request"),
        ({"topic": ["twice"]}, "bad-request"),
        ({"id": ["a b"]}, "illegal-id"),
        ({"key": ["a\u2003b"]}, "illegal-key"),
    ],
)
def test_what_is_wrong_has_its_code(small, client, columns, code) -> None:
    with pytest.raises(flight.FlightServerError) as caught:
        _put(client, _batch(1, **columns))
    assert json.loads(caught.value.extra_info)["code"] == code
    assert small.broker.status().pending == 0


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (pa.record_batch([["a"], ["b"]], ["body", "body"]), r"\['body'\] are there more than once"),
        (pa.record_batch([["a"], ["t"], ["u"]], ["body", "topic", "topic"]), r"\['topic'\] are there more"),
        (pa.record_batch({"body": [1]}), "column body must hold bytes or text; it is of type int64"),
        (pa.record_batch({"body": ["a"], "key": [[1]]}), "column key must hold text; it is of type list"),
        (
            pa.record_batch({"body": ["a"], "tag": [b"\xff"]}),
            "column tag must hold text",
        ),
    ],
)
def test_a_column_that_cannot_be_read_is_named(small, client, batch, words) -> None:
    topic = None if "topic" in batch.schema.names else "t"
    with pytest.raises(flight.FlightServerError, match=words) as caught:
        _put(client, batch, topic=topic)
    assert json.loads(caught.value.extra_info)["code"] == "bad-request"
    with pytest.raises(flight.FlightServerError, match="there more than once"):
        _cancel(client, pa.table([["x"], ["y"]], ["handle", "handle"]))


def test_a_batch_too_large_for_a_frame_is_refused_whole(small, client) -> None:
    with pytest.raises(flight.FlightServerError) as caught:
        _put(client, pa.record_batch({"body": pa.repeat(pa.scalar(b""), FRAME_ROWS_MAX + 1)}))
    assert json.loads(caught.value.extra_info)["code"] == "body-too-large"


# -- get ------------------------------------------------------------------------------------------


def test_pending_is_chosen_by_topic_key_and_time(small, client) -> None:
    _put(client, _batch(3, key=["x", "y", "x"]))
    small.send("other", delay_ms=1_000, keys=("x", "z"), tag="blue")
    everything = _get(client, table="pending")
    assert everything.num_rows == 4
    assert everything["key"].to_pylist() == ["x", "y", "x", "x z"]
    assert everything["tag"].to_pylist()[3] == "blue"
    assert _get(client, table="pending", topic="t", key="x").num_rows == 2
    assert _get(client, table="pending", key="x")["seq"].to_pylist() == [0, 2, 3]
    assert _get(client, table="pending", to_ms=START_MS + 5_000)["topic"].to_pylist() == ["other"]
    bodies = _get(client, table="pending", columns=["body", "handle"])
    assert bodies["body"].to_pylist() == [b"b0", b"b1", b"b2", b"x"]
    assert Handle.parse(bodies["handle"][3].as_py()).topic == "other"
    times = everything["deliver_at"].cast(pa.int64()).to_pylist()
    assert times == [START_MS + 60_000] * 3 + [START_MS + 1_000]


def test_history_has_every_release_and_only_those(small, client) -> None:
    _put(client, _batch(3, delay_ms=5))
    small.send("t", b"direct")
    small.advance(50)
    history = _get(client, table="history", topic="t")
    assert history.num_rows == 3
    assert set(history["via"].to_pylist()) == {"near"}
    assert history["lateness_ms"].to_pylist() == [0, 0, 0]
    assert sorted(zip(history["queue"].to_pylist(), history["offset"].to_pylist(), strict=True))
    assert _get(client, table="history", from_ms=START_MS + 6).num_rows == 0
    assert _get(client, table="history", to_ms=START_MS + 5).num_rows == 0


def test_messages_of_a_topic_come_from_the_offsets_asked_for(small, client) -> None:
    for number in range(6):
        small.send("t", f"m{number}".encode(), properties={"n": str(number)})
    table = _get(client, table="messages", topic="t")
    assert sorted(table["body"].to_pylist()) == [f"m{n}".encode() for n in range(6)]
    assert table["properties"][0].as_py() == '{"n":"0"}'
    assert table["deliver_at"].null_count == 6
    rest = _get(client, table="messages", topic="t", offsets={"0": 2, "1": 3})
    assert rest["offset"].to_pylist() == [2]


def test_a_table_of_many_frames_comes_in_order(small, client) -> None:
    for start in range(0, 60, 20):
        small.broker.send([Draft("t", f"{n}".encode(), delay_ms=5) for n in range(start, start + 20)])
        _put(client, _batch(5, delay_ms=5))
    small.advance(10)
    table = _get(client, table="messages", topic="t", columns=["queue", "offset", "body"])
    found = {(row["queue"], row["offset"]): row["body"] for row in table.to_pylist()}
    assert found == {(m.queue_id, m.offset): m.body for m in small.in_topic("t")}


def _some_of_everything(small) -> None:
    for number in range(24):
        keys = ("a",) if number % 3 == 0 else (f"k{number}",) if number % 3 == 1 else ()
        delay_ms = None if number % 5 == 0 else number * 1_000
        small.send(f"t{number % 2}", b"x" * number, delay_ms=delay_ms, keys=keys, tag="odd" * (number % 2))
    small.advance(9_000)


_CONDITIONS = [
    ("pending", ["deliver_at", ">", START_MS + 13_000], lambda r: r["deliver_at"] > START_MS + 13_000),
    ("pending", ["deliver_at", "<=", START_MS + 13_000], lambda r: r["deliver_at"] <= START_MS + 13_000),
    ("pending", ["seq", ">=", 10], lambda r: r["seq"] >= 10),
    ("pending", ["key", "=", "a"], lambda r: r["key"] == "a"),
    ("pending", ["key", "!=", "a"], lambda r: r["key"] != "a"),
    ("pending", ["key", "starts-with", "k1"], lambda r: r["key"].startswith("k1")),
    ("pending", ["key", "ends-with", "3"], lambda r: r["key"].endswith("3")),
    ("pending", ["key", "contains", "1"], lambda r: "1" in r["key"]),
    ("pending", ["key", "in", ["a", "k13"]], lambda r: r["key"] in ("a", "k13")),
    ("pending", ["topic", "=", "t1"], lambda r: r["topic"] == "t1"),
    ("pending", ["topic", "=", "nobody"], lambda r: False),
    ("pending", ["stored_at", "<", START_MS + 1], lambda r: r["stored_at"] < START_MS + 1),
    ("history", ["released_at", "<", START_MS + 5_000], lambda r: r["released_at"] < START_MS + 5_000),
    ("history", ["released_at", ">=", START_MS + 5_000], lambda r: r["released_at"] >= START_MS + 5_000),
    ("history", ["via", "=", "near"], lambda r: r["via"] == "near"),
    ("history", ["runner", "is-null"], lambda r: r["runner"] is None),
    ("history", ["runner", "!=", "spark"], lambda r: r["runner"] not in (None, "spark")),
    ("history", ["lateness_ms", "=", 0], lambda r: r["lateness_ms"] == 0),
    ("history", ["rolls", "=", 0], lambda r: r["rolls"] == 0),
    ("history", ["queue", "=", 1], lambda r: r["queue"] == 1),
    ("history", ["offset", ">", 1], lambda r: r["offset"] > 1),
    ("messages", ["deliver_at", "is-null"], lambda r: r["deliver_at"] is None),
    ("messages", ["deliver_at", "not-null"], lambda r: r["deliver_at"] is not None),
    ("messages", ["tag", "=", "odd"], lambda r: r["tag"] == "odd"),
    ("messages", ["stored_at", "<", START_MS + 1], lambda r: r["stored_at"] < START_MS + 1),
    ("queues", ["end_offset", ">", 3], lambda r: r["end_offset"] > 3),
    ("queues", ["topic", "=", "t0"], lambda r: r["topic"] == "t0"),
]


_ALL_OR_NONE = {"topic", "lateness_ms", "stored_at", "runner", "rolls", "via"}


def _rows(table: pa.Table) -> list[dict[str, object]]:
    """Rows with times as Unix milliseconds, in one order."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    rows = pa.table(columns, names=table.column_names).to_pylist()
    return sorted(rows, key=str)


@pytest.mark.parametrize(("table", "condition", "is_so"), _CONDITIONS)
def test_a_condition_leaves_the_rows_it_is_true_of(small, client, table, condition, is_so) -> None:
    _some_of_everything(small)
    everything = _rows(_get(client, table=table, columns=["*"]))
    expected = [row for row in everything if is_so(row)]
    assert _rows(_get(client, table=table, columns=["*"], where=[condition])) == expected
    assert 0 < len(expected) < len(everything) or condition[0] in _ALL_OR_NONE
    (only, *_) = everything[0]
    assert _get(client, table=table, columns=[only], where=[condition]).num_rows == len(expected)


def test_conditions_are_all_to_be_true(small, client) -> None:
    _some_of_everything(small)
    where = [["topic", "=", "t1"], ["seq", ">", 3], ["key", "=", "a"], ["deliver_at", "not-null"]]
    rows = _rows(_get(client, table="pending", columns=["*"], where=where))
    assert rows
    assert all(row["topic"] == "t1" and row["key"] == "a" for row in rows)


@pytest.mark.parametrize("table", ["pending", "history", "messages"])
@pytest.mark.parametrize("count", [2, 3, 50])
def test_parts_hold_every_row_once(small, client, table, count, monkeypatch) -> None:
    monkeypatch.setattr("tidemill.broker.query.table_views._PART_ROWS_MIN", 2)
    _some_of_everything(small)
    for where in ([], [["topic", "=", "t1"]], [["queue", "=", 0]]):
        command = {"table": table, "columns": ["*"], "where": where}
        descriptor = flight.FlightDescriptor.for_command(json.dumps({**command, "parts": count}).encode())
        info = client.get_flight_info(descriptor)
        assert 1 < len(info.endpoints) <= count + 4
        parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
        assert _rows(pa.concat_tables(parts)) == _rows(_get(client, **command))


def test_parts_are_fixed_when_they_are_made(small, client) -> None:
    small.send("t", b"before")
    descriptor = flight.FlightDescriptor.for_command(b'{"table": "messages", "topic": "t", "parts": 4}')
    (endpoint,) = client.get_flight_info(descriptor).endpoints
    small.send("t", b"after")
    small.send("t", b"after")
    assert client.do_get(endpoint.ticket).read_all()["body"].to_pylist() == [b"before"]


def test_parts_of_nothing_are_one_empty_part(small, client) -> None:
    for table in ("pending", "history", "messages"):
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"table": table, "parts": 4}).encode())
        (endpoint,) = client.get_flight_info(descriptor).endpoints
        assert client.do_get(endpoint.ticket).read_all().num_rows == 0


def test_offsets_and_until_bound_each_queue(small, client) -> None:
    for number in range(8):
        small.send("t", f"m{number}".encode())
    (queues,) = [_get(client, table="queues", topic="t").to_pylist()]
    assert [(q["queue"], q["first_offset"], q["end_offset"]) for q in queues] == [(0, 0, 4), (1, 0, 4)]
    table = _get(client, table="messages", topic="t", queues=[1], offsets={"1": 1}, until={"1": 3})
    assert table["offset"].to_pylist() == [1, 2]
    assert set(table["queue"].to_pylist()) == {1}


def test_an_id_sent_once_counts_for_as_long_as_the_message_is_kept(small, client) -> None:
    batch = _batch(3, id=["i", "j", "k"], key=["x", "y", ""], once=[True, False, True])
    (first,) = _put(client, batch)
    small.advance(2 * 3_600_000)
    (again,) = _put(client, batch)
    assert again["is_repeat"].to_pylist() == [True, False, True]
    assert again["seq"][0] == first["seq"][0]
    assert sorted(small.bodies("t")) == [b"b0", b"b1", b"b2"]


def test_flights_and_schemas_are_listed(small, client) -> None:
    small.send("t")
    paths = [[part.decode() for part in info.descriptor.path] for info in client.list_flights()]
    assert paths == [["pending"], ["history"], ["messages", "t"]]
    info = client.get_flight_info(flight.FlightDescriptor.for_path("messages", "t"))
    assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 1
    schema = client.get_schema(flight.FlightDescriptor.for_command(b'{"table": "pending"}')).schema
    assert "deliver_at" in schema.names


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        b'{"table": "no"}',
        b'{"table": "pending", "columns": ["no"]}',
        b'{"table": "pending", "from_ms": "x"}',
        b'{"table": "pending", "no": 1}',
        b'{"table": "messages", "topic": "missing"}',
        b'{"table": "messages", "offsets": {"x": 1}}',
        b'{"table": "messages", "until": {"0": -1}}',
        b'{"table": "messages", "queues": ["0"]}',
        b'{"table": "pending", "where": ["seq"]}',
        b'{"table": "pending", "where": [["no", "=", 1]]}',
        b'{"table": "pending", "where": [["seq", "like", 1]]}',
        b'{"table": "pending", "where": [["seq", "=", "1"]]}',
        b'{"table": "pending", "where": [["seq", "=", 18446744073709551616]]}',
        b'{"table": "pending", "where": [["key", "=", 1]]}',
        b'{"table": "pending", "where": [["key", "in", "abc"]]}',
        b'{"table": "pending", "where": [["size", "contains", "1"]]}',
        b'{"table": "pending", "where": [["body", "is-null"]]}',
        b'{"table": "history", "key": "k"}',
    ],
)
def test_a_wrong_ticket_is_reported(client, ticket) -> None:
    with pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(ticket)).read_all()
    assert "code" in json.loads(caught.value.extra_info)


# -- cancel ---------------------------------------------------------------------------------------


def test_cancels_answer_definitely_row_by_row(small, client) -> None:
    (sent,) = _put(client, _batch(4, delay_ms=60_000))
    released = small.send("t", delay_ms=1)
    small.advance(5)
    rows = sent.select(["id", "seq"])
    assert _cancel(client, rows.slice(0, 1), topic="t") == ["cancelled"]
    unknown = pa.table({"id": [released.id, "nobody"], "seq": [released.handle.seq, 2]})
    assert _cancel(client, unknown, topic="t") == ["released", "unknown"]
    again = _cancel(client, rows.take([0, 1, 1]), topic="t")
    assert again == ["already-cancelled", "cancelled", "already-cancelled"]
    brokers = ("elsewhere", small.broker.id)
    handles = [str(Handle(broker, "t", sent["id"][2].as_py(), 2)) for broker in brokers]
    assert _cancel(client, pa.table({"handle": handles})) == ["unknown", "cancelled"]
    columns = {"broker": ["elsewhere"], "topic": ["t"], "id": sent["id"][3:], "seq": [3]}
    assert _cancel(client, pa.table(columns)) == ["unknown"]
    assert small.broker.status().pending == 1


def test_a_moved_message_is_found_by_its_old_handle(small, client) -> None:
    sent = small.send("t", delay_ms=60_000)
    small.broker.reschedule([sent.handle], by_ms=5_000)
    assert _cancel(client, pa.table({"handle": [str(sent.handle)]})) == ["cancelled"]


def test_the_action_cancels_too(client) -> None:
    (sent,) = _put(client, _batch(2))
    sink = pa.BufferOutputStream()
    rows = sent.select(["id", "seq"]).append_column("topic", pa.array(["t", "t"]))
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)
    (result,) = client.do_action(flight.Action("cancel", sink.getvalue()))
    assert pa.ipc.open_stream(result.body).read_all()["answer"].to_pylist() == ["cancelled"] * 2
    with pytest.raises(flight.FlightServerError):
        list(client.do_action(flight.Action("cancel", b"garbage")))
    with pytest.raises(flight.FlightServerError):
        list(client.do_action(flight.Action("explode", b"")))


def test_a_batch_with_a_request_id_gets_the_first_answer_again(small, client) -> None:
    (sent,) = _put(client, _batch(4, delay_ms=60_000))
    rows = sent.select(["id", "seq"])
    keys = [b"one", b"two", b"three"]
    assert _cancel(client, rows.slice(0, 3), keys=keys, topic="t") == ["cancelled"] * 3
    assert _cancel(client, rows.slice(1, 3), keys=[*keys[1:], b"four"], topic="t") == ["cancelled"] * 3
    assert _cancel(client, rows.slice(0, 2), topic="t") == ["already-cancelled"] * 2
    with pytest.raises(flight.FlightServerError, match="the request id 'two' was used within the last 1h"):
        _cancel(client, rows.slice(0, 1), keys=keys[1:2], topic="t")
    for key in (b"two words", b"x" * 256, b"\xff"):
        with pytest.raises(flight.FlightServerError, match="use 1 to 255 visible ASCII"):
            _cancel(client, rows.slice(0, 1), keys=[key], topic="t")


def test_an_action_with_a_request_id_gets_the_first_answer_again(client) -> None:
    (sent,) = _put(client, _batch(3, delay_ms=60_000))
    rows = sent.select(["id", "seq"]).append_column("topic", pa.array(["t"] * 3))

    def cancel(metadata):
        table, sink = rows.replace_schema_metadata(metadata), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table, max_chunksize=2)
        (result,) = client.do_action(flight.Action("cancel", sink.getvalue()))
        return pa.ipc.open_stream(result.body).read_all()["answer"].to_pylist()

    keyed = {"idempotency-key": "k"}
    assert [cancel(keyed), cancel(keyed), cancel({})] == [["cancelled"] * 3] * 2 + [["already-cancelled"] * 3]
    rows = rows.take([0, 1, 0])  # the second batch is another one: named as the caller named it
    with pytest.raises(flight.FlightServerError, match="the request id 'k' was used within the last 1h"):
        cancel(keyed)


# -- how often, how many -------------------------------------------------------------------------


def test_calls_and_batches_of_one_client_are_counted(small) -> None:
    with _door(small, limits=FlightLimits(Rates(2, now_s=lambda: 0.0))) as client:
        with pytest.raises(flight.FlightUnavailableError, match="more than 2 calls a second"):
            _put(client, *[_batch(1)] * 9)
        assert small.broker.status().pending == 4
        with pytest.raises(flight.FlightUnavailableError, match=r"from address 127\.0\.0\.1"):
            _get(client, table="pending")


def test_more_calls_at_once_than_the_limit_are_told_to_retry_later(small) -> None:
    with _door(small, limits=FlightLimits(calls_max=1)) as client:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), _batch(1).schema)
        writer.write_batch(_batch(1))
        answers.read()
        with pytest.raises(flight.FlightUnavailableError, match="call limit reached: 1 Flight calls"):
            _get(client, table="pending")
        writer.close()
        assert _get(client, table="pending").num_rows == 1


# -- who may --------------------------------------------------------------------------------------


class _OnlySends:
    """Lets the token `right` send to topic t, and nothing else."""

    def user_of_token(self, authorization: str) -> User:
        if authorization != "Bearer right":
            raise UnauthorizedError("who are you?")
        return User("right", (Rule(frozenset({Verb.SEND}), Patterns(["t"]), Patterns([])),))


def test_every_call_is_asked_for_its_token(small) -> None:
    right = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer right")])
    with _door(small, authority=_OnlySends()) as client:
        with pytest.raises(flight.FlightUnauthenticatedError):
            _put(client, _batch(1))
        _put(client, _batch(1), options=right)
        with pytest.raises(flight.FlightUnauthorizedError):
            _put(client, _batch(2, topic=["t", "u"]), topic=None, options=right)
        _put(client, _batch(1, topic=[b"t"]), topic=None, options=right)  # bytes, asked about as the text
        with pytest.raises(flight.FlightUnauthorizedError):
            _get(client, right, table="pending")
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.list_flights())
        assert list(client.list_flights(options=right)) == []
        with pytest.raises(flight.FlightUnauthenticatedError):
            _cancel(client, pa.table({"id": ["x"], "seq": [0]}), topic="t")
    assert small.broker.status().pending == 2


def test_a_call_for_another_broker_is_refused_and_stores_nothing(small, client) -> None:
    meant = flight.FlightCallOptions(headers=[(b"x-tidemill-broker", b"another")])
    with pytest.raises(
        flight.FlightUnavailableError, match="not another; read the Flight port from that broker's /healthz"
    ):
        _put(client, _batch(), options=meant)
    assert small.broker.status().pending == 0
    own = flight.FlightCallOptions(headers=[(b"x-tidemill-broker", small.broker.id.encode())])
    assert len(_put(client, _batch(), options=own)) == 1


def test_a_kept_connection_is_not_taken_over_by_another_broker_on_the_port(small, tmp_path) -> None:
    ours, other = small, SmallBroker(tmp_path / "other")
    first = FlightServer(ours.broker)
    said = {"port": first.port, "tls": False, "broker": ours.broker.id}
    policy = RetryPolicy(30.0, True)
    link = FlightLink(Endpoint.parse("127.0.0.1"), "", policy, lambda: {"flight": said}, threading.Event())
    table = pa.table({"body": ["b"], "delay_ms": [60_000]})
    try:
        assert not link.schedule(table, "t", list).errors
        first.close()
        intruder = FlightServer(other.broker, port=said["port"])
        second = FlightServer(ours.broker)
        said["port"] = second.port
        assert not link.schedule(table, "t", list).errors
        assert (ours.broker.status().pending, other.broker.status().pending) == (2, 0)
        intruder.close()
        second.close()
    finally:
        link.close()
        other.check()
        other.close()


def test_a_closed_broker_says_so(small, client) -> None:
    small.close()
    with pytest.raises(flight.FlightUnavailableError):
        _put(client, _batch(1))
    small.open()
