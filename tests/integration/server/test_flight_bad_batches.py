"""Batches that lie about what is in them: each is refused in words, before anything reads it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tidemill.broker.send.batch_bounds import WHOLE_BYTES_MAX
from tidemill.core.errors import ForbiddenError
from tidemill.core.limits import FRAME_ROWS_MAX, MIB
from tidemill.server.flight.flight_server import FlightServer

_KEPT = []  # what a bad array points into, for as long as it is written


@pytest.fixture
def server(small):
    server = FlightServer(small.broker)
    yield server
    server.close()


@pytest.fixture
def client(server):
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        yield client


def _put(client, batch, *topic) -> pa.Table:
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(*topic), batch.schema)
    try:
        writer.write_batch(batch)
        content = answers.read()
    finally:
        writer.close()
    return pa.ipc.open_stream(content).read_all()


def _exchange(client, batch, **command) -> list[str]:
    said = json.dumps({"do": "cancel", **command}).encode()
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(said))
    try:
        writer.begin(batch.schema)
        writer.write_batch(batch)
        return reader.read_chunk().data["answer"].to_pylist()
    finally:
        writer.close()


def _act(client, *batches) -> list[str]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as out:
        for batch in batches:
            out.write_batch(batch)
    (result,) = client.do_action(flight.Action("cancel", sink.getvalue()))
    return pa.ipc.open_stream(result.body).read_all()["answer"].to_pylist()


def _refusal(act, *arguments, **options) -> dict[str, str]:
    with pytest.raises(flight.FlightServerError) as caught:
        act(*arguments, **options)
    assert "Traceback" not in str(caught.value)
    return json.loads(caught.value.extra_info)


# -- not what it says -----------------------------------------------------------------------------


def _texts(middle: int, kind: pa.DataType | None = None) -> pa.Array:
    """Two texts, the offset between which is anything."""
    kind = kind or pa.string()
    offsets = np.array([0, 1, 3], np.int64 if "large" in str(kind) else np.int32)
    array = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])
    offsets[1] = middle  # only now: pyarrow looks at what it makes
    _KEPT.append(offsets)
    return array


def _view(length: int, at: int) -> pa.Array:
    numbers = np.zeros((2, 4), np.int32)
    buffers = [None, pa.py_buffer(numbers), pa.py_buffer(b"q" * 50)]
    array = pa.Array.from_buffers(pa.string_view(), 2, buffers)
    numbers[1] = (length, 0, 0, at)
    _KEPT.append(numbers)
    return array


def _indices(second: int) -> pa.Array:
    numbers = np.zeros(2, np.int32)
    indices = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(numbers)])
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]))
    numbers[1] = second
    _KEPT.append(numbers)
    return array


def _runs() -> pa.Array:
    array = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), _texts(1))
    _KEPT[-1][1] = 1 << 20
    return array


_BAD = {
    "far": lambda: _texts(1 << 20),
    "near": lambda: _texts(48),
    "farthest": lambda: _texts((1 << 31) - 1),
    "negative": lambda: _texts(-5),
    "large": lambda: _texts(1 << 40, pa.large_string()),
    "bytes": lambda: _texts(1 << 20, pa.binary()),
    "index": lambda: _indices(1 << 28),
    "dictionary": lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), _texts(1 << 20)),
    "view": lambda: _view(40, 1 << 28),
    "view length": lambda: _view(-40, 0),
    "list": lambda: pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), _texts(1 << 20)),
    "struct": lambda: pa.StructArray.from_arrays([_texts(1 << 20)], ["a"]),
    "runs": lambda: _runs(),
}


@pytest.mark.parametrize("how", _BAD)
def test_offsets_that_point_elsewhere_are_refused_in_every_column_of_every_call(small, client, how) -> None:
    bad, good, seqs = _BAD[how](), ["x", "y"], pa.array([1, 2])
    for batch in (
        pa.record_batch({"handle": bad}),
        pa.record_batch({"id": good, "seq": seqs, "topic": bad}),
        pa.record_batch({"id": bad, "seq": seqs, "topic": good}),
        pa.record_batch({"id": good, "seq": bad, "topic": good}),
        pa.record_batch({"id": good, "seq": seqs, "topic": good, "broker": bad}),
        pa.record_batch({"id": good, "seq": seqs, "topic": good, "beside": bad}),
    ):
        for act in (_exchange, _act):
            said = _refusal(act, client, batch)
            assert said["code"] == "bad-request"
            assert "not valid Arrow data" in said["message"]
    for batch in (
        pa.record_batch({"body": [b"x", b"y"], "topic": bad}),
        pa.record_batch({"body": bad, "topic": good}),
        pa.record_batch({"body": good, "topic": good, "level": bad}),
    ):
        said = _refusal(_put, client, batch)
        assert said["code"] == "bad-request"
        assert "batch 0 was not stored: the table is not valid Arrow data" in said["message"]
    assert small.broker.status().pending == 0


def test_permissions_are_not_asked_for_topics_that_cannot_be_read(small) -> None:
    class Asked:
        name = ""

        def user_of_token(self, authorization: str) -> Asked:
            return self

        def require(self, verb: object, *, topic: str | None = None, group: str | None = None) -> None:
            raise ForbiddenError("asked")

    server = FlightServer(small.broker, authority=Asked())
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        columns = {"id": ["x", "y"], "seq": [1, 2]}
        for topics, code in ((_texts(-5), "bad-request"), (pa.array(["a", "b"]), "forbidden")):
            for act in (_exchange, _act):
                with pytest.raises((flight.FlightServerError, flight.FlightUnauthorizedError)) as caught:
                    act(client, pa.record_batch({**columns, "topic": topics}))
                assert json.loads(caught.value.extra_info)["code"] == code
    server.close()


def test_a_message_that_arrow_cannot_take_apart_is_refused_in_words(client) -> None:
    # Arrow writes a dictionary of a dictionary, and does not read it again.
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["a"]).dictionary_encode())
    calls = [(_put, "body", ["t"]), (_exchange, "handle", []), (_act, "handle", [])]
    for act, name, rest in calls:
        assert _refusal(act, client, pa.record_batch({name: column}), *rest)["code"] == "bad-request"


@pytest.mark.parametrize("fault", [pa.ArrowIndexError, pa.ArrowCapacityError, SystemError])
def test_what_arrow_cannot_do_is_reported_in_words(small, client, monkeypatch, fault) -> None:
    def fail(*arguments: object) -> None:
        raise fault("strange")

    monkeypatch.setattr("tidemill.server.flight.flight_server.cancel_columns", fail)
    said = _refusal(_exchange, client, pa.record_batch({"handle": ["x"]}))
    assert said == {"code": "bad-request", "message": "the batch cannot be read: strange"}


# -- more than it looks ---------------------------------------------------------------------------


def _repeated(text: bytes, count: int = FRAME_ROWS_MAX) -> pa.Array:
    """The same text in every row, there once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))


def _viewed(length: int, count: int = FRAME_ROWS_MAX) -> pa.Array:
    """The same without a dictionary."""
    numbers = np.tile(np.array([length, 0, 0, 0], np.int32), (count, 1))
    numbers[:, 1] = np.frombuffer(b"qqqq", np.int32)[0]
    return pa.Array.from_buffers(
        pa.binary_view(), count, [None, pa.py_buffer(numbers), pa.py_buffer(b"q" * length)]
    )


_MANY = 100_000_000


@pytest.mark.parametrize("column", [pa.nulls(_MANY), _repeated(b"h", 200_000)])
def test_more_rows_than_a_frame_has_are_refused_before_any_is_made(small, client, column) -> None:
    for act in (_exchange, _act):
        for batch in (
            pa.record_batch({"handle": column}),
            pa.record_batch({"id": column, "seq": column, "topic": column}),
        ):
            assert _refusal(act, client, batch)["code"] == "body-too-large"
    said = _refusal(_put, client, pa.record_batch({"body": column, "topic": column}))
    assert said["code"] == "body-too-large"
    assert f"{len(column)} rows; send at most {FRAME_ROWS_MAX} in each" in said["message"]


def test_an_action_has_no_more_rows_in_all_its_batches(client) -> None:
    batch = pa.record_batch(
        {"id": pa.nulls(FRAME_ROWS_MAX), "seq": pa.nulls(FRAME_ROWS_MAX), "topic": ["t"] * FRAME_ROWS_MAX}
    )
    assert set(_act(client, batch)) == {"unknown"}
    assert "131072 rows" in _refusal(_act, client, batch, batch)["message"]


@pytest.mark.parametrize("column", [_repeated(b"q" * 20_000), _viewed(20_000)])
def test_a_value_that_every_row_shares_counts_in_every_row(small, client, column) -> None:
    batch = pa.record_batch({"body": column})
    assert batch.nbytes < 2 * MIB
    said = _refusal(_put, client, batch, "t")
    assert said["code"] == "body-too-large"
    assert f"every value written out; send at most {WHOLE_BYTES_MAX} in each" in said["message"]
    for act in (_exchange, _act):
        assert _refusal(act, client, pa.record_batch({"handle": column}))["code"] == "body-too-large"
    assert small.broker.status().sent == 0


@pytest.mark.parametrize("column", [_repeated(b"q" * 100), _viewed(100)])
def test_what_is_modest_goes_on_working(small, client, column) -> None:
    answer = _put(client, pa.record_batch({"body": column, "delay_ms": np.full(len(column), 60_000)}), "t")
    assert answer.num_rows == FRAME_ROWS_MAX
    assert small.broker.status().pending == FRAME_ROWS_MAX


@pytest.mark.parametrize("name", ["t" * 128, "t" * 1_000_000])
def test_a_name_that_no_topic_has_is_not_written_into_every_row(client, name) -> None:
    rows = 60_000
    assert (
        _refusal(_put, client, pa.record_batch({"body": pa.repeat(b"", rows)}), name)["code"]
        == "illegal-topic"
    )
    name *= 3  # a topic that the broker made itself may have a longer one
    columns = pa.record_batch({"id": pa.nulls(rows), "seq": pa.nulls(rows)})
    assert _refusal(_exchange, client, columns, topic=name)["code"] == "illegal-topic"
