"""Whatever the Flight endpoint is asked: an answer, or an error raised on purpose that says what is wrong."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from tidemill.core.errors import TidemillError
from tidemill.server.flight.flight_requests import (
    cancel_columns,
    command_of,
    parse_ticket,
    parts_of,
    put_topic_of,
    ticket_content,
    wanted_of,
)

_SETTINGS = settings(
    max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck), database=None
)
_COLUMNS = (
    "topic",
    "id",
    "seq",
    "key",
    "deliver_at",
    "lateness_ms",
    "queue",
    "offset",
    "body",
    "handle",
    "*",
)
_OPERATORS = ("=", "!=", "<", ">=", "in", "starts-with", "contains", "is-null", "not-null", "~")
_NUMBERS = st.sampled_from([-1, 0, 1, 60_000, 2**31, 2**62, 2**63, 2**70]) | st.integers()
_VALUES = st.none() | st.booleans() | _NUMBERS | st.floats() | st.text(max_size=5)
_NAMES = st.sampled_from(["orders", "none", "", "%DLQ%g"]) | st.text(max_size=5)
_CONDITION = st.tuples(
    st.sampled_from(_COLUMNS) | st.text(max_size=3),
    st.sampled_from(_OPERATORS),
    _VALUES | st.lists(_VALUES, max_size=3),
).map(list)
_PLACES = st.dictionaries(st.sampled_from(["0", "1", "9999", "-1", "x", "٣"]), _VALUES, max_size=2)
_TICKET = st.fixed_dictionaries(
    {"table": st.sampled_from(["pending", "history", "messages", "queues"]) | _VALUES},
    optional={
        "topic": _NAMES | _VALUES,
        "key": _NAMES | _VALUES,
        **dict.fromkeys(("from_ms", "to_ms", "from_seq", "to_seq", "parts", "other"), _VALUES),
        "columns": st.lists(st.sampled_from(_COLUMNS) | _VALUES, max_size=4) | _VALUES,
        "queues": st.lists(_VALUES, max_size=3) | _VALUES,
        "offsets": _PLACES | _VALUES,
        "until": _PLACES | _VALUES,
        "where": st.lists(_CONDITION | _VALUES, max_size=3) | _VALUES,
    },
)
_CELLS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    small = SmallBroker(tmp_path_factory.mktemp("flight") / "data")
    small.send("orders", b"x", delay_ms=60_000, keys=("k",))
    small.send("orders", b"released", delay_ms=0)
    small.send("orders", b"y")
    small.advance(10)
    yield small
    small.check()
    small.close()


@_SETTINGS
@given(_TICKET)
def test_any_ticket_is_read_or_refused(small, said: dict[str, Any]) -> None:
    with contextlib.suppress(TidemillError):
        count = parts_of(said)
        wanted = wanted_of(said)
        again = parse_ticket(ticket_content(wanted))
        assert again.schema() == wanted.schema()
        found = pa.Table.from_batches(small.broker.tables.read(wanted), wanted.schema()).num_rows
        parts = small.broker.tables.parts(wanted, count)
        assert found == sum(batch.num_rows for part in parts for batch in small.broker.tables.read(part))


@_SETTINGS
@given(st.binary(max_size=60) | _VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"table": "pending", "topic": "\\ud800"}')
def test_any_bytes_are_a_ticket_or_refused(data: bytes) -> None:
    for read in (parse_ticket, lambda data: put_topic_of(flight.FlightDescriptor.for_command(data))):
        with contextlib.suppress(TidemillError):
            read(data)


@_SETTINGS
@given(st.lists(st.binary(max_size=6), max_size=3))
def test_any_path_is_read_or_refused(path: list[bytes]) -> None:
    descriptor = flight.FlightDescriptor.for_path(*path)
    with contextlib.suppress(TidemillError):
        wanted_of(command_of(descriptor))
    with contextlib.suppress(TidemillError):
        put_topic_of(descriptor)


@_SETTINGS
@given(
    st.dictionaries(st.sampled_from(["handle", "topic", "id", "seq", "broker"]), _CELLS, min_size=1),
    st.none() | _NAMES,
)
def test_any_columns_are_cancelled_or_refused(small, row: dict[str, Any], topic: str | None) -> None:
    batch = pa.record_batch({name: [value] for name, value in row.items()})
    with contextlib.suppress(TidemillError):
        topics, ids, seqs = cancel_columns(batch, small.broker.id, topic)
        assert len(small.broker.cancel_rows(topics, ids, seqs)) == 1
