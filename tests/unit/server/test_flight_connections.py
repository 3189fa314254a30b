"""Idle connections to the Flight port: the latest are closed, those before them and all others stay."""

from __future__ import annotations

import contextlib
import os
import socket

import pyarrow as pa
import pytest
from pyarrow import flight

from tidemill.server.flight_connections import FlightConnections
from tidemill.server.flight_door import FlightDoor

_MAX = 5


@pytest.fixture
def door(small):
    door = FlightDoor(small.broker)
    yield door
    door.close()


def _connect(door: FlightDoor) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", door.port), 120)
    assert connection.recv(64), "the server greets whom it has accepted"
    return connection


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(4096) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def _wait_for_end(connection: socket.socket) -> None:
    connection.settimeout(120)
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass


@pytest.fixture
def few_files(monkeypatch):
    """The process has fewer files than the limit, whatever else is open."""
    monkeypatch.setattr(os, "listdir", lambda _: [])


def test_the_latest_are_closed_and_those_before_stay(door) -> None:
    limit = FlightConnections(door.port, _MAX)
    with flight.connect(f"grpc://127.0.0.1:{door.port}") as client, contextlib.ExitStack() as stack:
        table = pa.table({"body": [b"x"]})
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), table.schema)
        early = [stack.enter_context(_connect(door)) for _ in range(_MAX - 1)]
        assert limit.look() == 0
        late = [stack.enter_context(_connect(door)) for _ in range(7)]
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        elsewhere = stack.enter_context(socket.create_connection(other.getsockname()))
        assert limit.look() == 7
        for connection in late:
            _wait_for_end(connection)
        assert all(map(_is_open, [*early, elsewhere]))
        writer.write_table(table)  # who was at work goes on
        assert answers.read() is not None
        writer.close()
        assert limit.look() == 0
        early.pop().close()


def test_room_is_given_again(door) -> None:
    limit = FlightConnections(door.port, _MAX)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(_connect(door)) for _ in range(_MAX + 2)]
        assert limit.look() == 2
        for connection in first:
            connection.close()
        later = [stack.enter_context(_connect(door)) for _ in range(_MAX)]
        while limit.look():  # the server has not heard of every farewell yet
            later = [*filter(_is_open, later)]
            later += [stack.enter_context(_connect(door)) for _ in range(_MAX - len(later))]
        assert all(map(_is_open, later))


def test_looking_leaves_no_file_open(door) -> None:
    limit = FlightConnections(door.port, 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        limit.look()
    assert len(os.listdir("/proc/self/fd")) < before + 20


def test_few_files_are_not_looked_at(door, few_files) -> None:
    assert FlightConnections(door.port, 0).look() == 0
