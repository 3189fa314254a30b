"""Connections to the Flight port: those over a limit are closed, all others stay."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyarrow import flight

from acceptance.raw_connections import MIB, Http2
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.model import Draft
from tidemill.server.flight.flight_connections import FlightConnections, _Connection
from tidemill.server.flight.flight_server import FlightServer
from tidemill.server.flight.flight_traffic import (
    BATCH_BYTES,
    OUT_BYTES_MAX,
    FlightLimits,
    FlightTraffic,
    caller_at,
    caller_of,
)

_MAX = 5


@pytest.fixture
def server(small):
    server = FlightServer(small.broker)
    yield server
    server.close()


def _connect(server: FlightServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 120)
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


def test_the_latest_are_closed_and_those_before_stay(server) -> None:
    limit = FlightConnections(server.port, _MAX)
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client, contextlib.ExitStack() as stack:
        table = pa.table({"body": [b"x"]})
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), table.schema)
        early = [stack.enter_context(_connect(server)) for _ in range(_MAX - 1)]
        assert limit.look() == 0
        late = [stack.enter_context(_connect(server)) for _ in range(7)]
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


def test_room_is_given_again(server) -> None:
    limit = FlightConnections(server.port, _MAX)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(_connect(server)) for _ in range(_MAX + 2)]
        assert limit.look() == 2
        for connection in first:
            connection.close()
        later = [stack.enter_context(_connect(server)) for _ in range(_MAX)]
        while limit.look():  # the server has not heard of every farewell yet
            later = [*filter(_is_open, later)]
            later += [stack.enter_context(_connect(server)) for _ in range(_MAX - len(later))]
        assert all(map(_is_open, later))


def test_looking_leaves_no_file_open(server) -> None:
    limit = FlightConnections(server.port, 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        limit.look()
    assert len(os.listdir("/proc/self/fd")) < before + 20


# -- how much each may send at once ---------------------------------------------------------------

_PUT = "/arrow.flight.protocol.FlightService/DoPut"
_GET = "/arrow.flight.protocol.FlightService/DoGet"


def _announce(server: FlightServer, path: str) -> tuple[Http2, int]:
    """A call whose first message is said to have a gibibyte."""
    connection = Http2(server.port)
    return connection, connection.call(path, struct.pack(">BI", 0, 1 << 30), ends=False)


@pytest.mark.parametrize("path", [_PUT, _GET])
def test_a_connection_with_too_much_gathered_is_closed_and_no_other(server, path) -> None:
    limit = FlightConnections(server.port, 100, server.traffic, message_bytes_max=MIB)
    with contextlib.ExitStack() as stack:
        early = stack.enter_context(_connect(server))
        connection, stream = _announce(server, path)
        stack.callback(connection.close)
        connection.pump(stream, MIB // 2)
        assert limit.look() == 0
        while not limit.look():
            assert connection.pump(stream, MIB // 4), "the server takes no more, and we did not notice"
        _wait_for_end(connection.socket)
        assert _is_open(early)
        assert limit.look() == 0


def test_all_together_are_bounded_and_the_largest_goes(server) -> None:
    limit = FlightConnections(server.port, 100, server.traffic, gathered_bytes_max=2 * MIB)
    with contextlib.ExitStack() as stack:
        sizes = (MIB // 4, MIB, MIB // 2, MIB)
        calls = [_announce(server, _PUT) for _ in sizes]
        for (connection, stream), size in zip(calls, sizes, strict=True):
            stack.callback(connection.close)
            assert connection.pump(stream, size) >= size
        while not limit.look():  # the system has not reported everything yet
            pass
        assert limit.look() == 0
        while not (ended := [n for n, (connection, _) in enumerate(calls) if _has_ended(connection.socket)]):
            pass
        assert ended in ([1], [3])


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_what_was_handed_over_does_not_count(server) -> None:
    limit = FlightConnections(server.port, 100, server.traffic, message_bytes_max=MIB // 2)
    batch = pa.record_batch({"body": [b"x" * 100] * 2_000})
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema)
        for _ in range(10):
            writer.write_batch(batch)
            assert answers.read() is not None
            assert limit.look() == 0
        writer.close()
        ticket = flight.Ticket(b'{"table": "messages", "topic": "t", "columns": ["id", "body"]}')
        for _ in range(20):
            client.get_schema(flight.FlightDescriptor.for_path("pending"))
            assert len(list(client.list_flights())) == 3
            assert client.do_get(ticket).read_all().num_rows == 20_000
            assert limit.look() == 0


def test_small_requests_without_end_do_not_add_up(server) -> None:
    limit = FlightConnections(server.port, 100, server.traffic, message_bytes_max=8_000)
    batch = pa.record_batch({"body": [b"x"]})
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema)
        for _ in range(50):
            writer.write_batch(batch)
            assert answers.read() is not None
            client.get_schema(flight.FlightDescriptor.for_path("pending"))
            assert limit.look() == 0
        writer.close()


def test_what_was_refused_does_not_count(server) -> None:
    limit = FlightConnections(server.port, 100, server.traffic, message_bytes_max=MIB)
    batch = pa.record_batch({"body": [b"x" * 100] * 2_000, "level": [-1] * 2_000})
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        for _ in range(20):
            writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema)
            writer.write_batch(batch)
            assert answers.read() is None
            with pytest.raises(pa.ArrowException, match="level"):
                writer.close()
            assert limit.look() == 0


def test_each_stream_of_a_connection_may_have_a_message(server) -> None:
    limit = FlightConnections(server.port, 100, server.traffic, message_bytes_max=MIB)
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client, contextlib.ExitStack() as stack:
        batch = pa.record_batch({"body": [b"x"]})
        for _ in range(3):
            writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema)
            stack.callback(writer.close)
            writer.write_batch(batch)
            assert answers.read() is not None
        (caller,) = server.traffic.take().streams
        assert server.traffic.take().streams == {caller: 3}
        connections = [one for one in _found(limit) if one.caller == caller]
        for one, size, is_large in ((connections[0], 3 * MIB, False), (connections[0], 3 * MIB + 1, True)):
            one.received, one.handed = size, 0
            assert bool(limit._large([one], server.traffic.take())) is is_large


def _found(limit: FlightConnections) -> list[_Connection]:
    limit.look()
    return list(limit._sockets.values())


def test_a_connection_that_is_silent_for_too_long_is_closed(server) -> None:
    with _connect(server) as connection:
        assert FlightConnections(server.port, 100).look() == 0
        assert FlightConnections(server.port, 100, silence_ms_max=-1).look() == 1
        _wait_for_end(connection)


def test_while_much_is_out_no_stream_begins(small, server) -> None:
    small.broker.send([Draft("t", b"x" * 1000) for _ in range(100)])
    ticket = flight.Ticket(b'{"table": "messages", "topic": "t"}')
    server.traffic.wait_s = 0
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        with (
            server.traffic.out("other 1", OUT_BYTES_MAX + 1),
            pytest.raises(flight.FlightUnavailableError, match="do not read"),
        ):
            client.do_get(ticket).read_all()
        client.do_get(ticket).cancel()
        server.traffic.wait_s = 120
        assert client.do_get(ticket).read_all().num_rows == 100
    while server.traffic.out_bytes:  # a stream that was given up ends by itself
        pass


def test_streams_that_begin_together_do_not_make_their_batches_together(small, server, monkeypatch) -> None:
    """Each looked before the others had anything out, and then all of them had."""
    small.broker.send([Draft("t", b"x")])
    read, may_go_on, is_making = small.broker.tables.read, threading.Event(), threading.Event()

    def slowly(wanted):
        is_making.set()
        assert may_go_on.wait(120)
        yield from read(wanted)

    monkeypatch.setattr(small.broker.tables, "read", slowly)
    server.traffic = FlightTraffic(out_bytes_max=BATCH_BYTES, wait_s=0)
    ticket = flight.Ticket(b'{"table": "messages", "topic": "t"}')
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client, ThreadPoolExecutor() as pool:
        first = pool.submit(lambda: client.do_get(ticket).read_all())
        assert is_making.wait(120)
        with pytest.raises(flight.FlightUnavailableError, match="do not read"):
            client.do_get(ticket).read_all()
        may_go_on.set()
        assert first.result(120).num_rows == 1
        server.traffic.wait_s = 120
        assert client.do_get(ticket).read_all().num_rows == 1


def test_batches_are_made_one_after_the_other_as_far_as_there_is_room() -> None:
    traffic = FlightTraffic(out_bytes_max=2 * BATCH_BYTES, wait_s=0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(traffic.out("first 1", BATCH_BYTES))
        with traffic.making():
            with pytest.raises(TooManyRequestsError), traffic.making():
                pass
        with traffic.making():  # the one before is no longer being made
            pass
        stack.enter_context(traffic.out("second 2", 1))
        with pytest.raises(TooManyRequestsError), traffic.making():
            pass
        traffic.wait_s = 120
        waiting = threading.Thread(target=lambda: stack.enter_context(traffic.making()))
        waiting.start()
        now_s = stopwatch_s() + 60
        while not traffic.not_reading(now_s):  # it waits
            pass
        assert traffic.not_reading(now_s) == {"first 1"}  # enough to free memory
        stack.pop_all().close()
        waiting.join(120)
        assert not waiting.is_alive()
    with FlightTraffic(out_bytes_max=1, wait_s=0).making():  # nothing is out: however large it becomes
        pass


def test_those_who_do_not_read_are_sent_away_while_much_is_out(server) -> None:
    traffic = FlightTraffic(out_bytes_max=250)
    now_s = stopwatch_s()
    with contextlib.ExitStack() as stack:
        for caller in ("first 1", "second 2", "third 3", "fourth 4"):
            stack.enter_context(traffic.out(caller, 100))
        assert traffic.not_reading(now_s + 1) == set()
        assert traffic.not_reading(now_s + 60) == {"first 1", "second 2"}
        traffic = FlightTraffic(out_bytes_max=0)
        connection = stack.enter_context(_connect(server))
        host, port = connection.getsockname()
        stack.enter_context(traffic.out(caller_at(host, port), 1))
        limit = FlightConnections(server.port, 100, traffic)
        assert limit.look() == 0
        traffic.not_reading = lambda _: {caller_at(host, port)}  # as it says a while later
        assert limit.look() == 1
        _wait_for_end(connection)


@pytest.mark.parametrize(
    ("peer", "caller"),
    [
        ("ipv4:10.0.0.7:5123", "10.0.0.7 5123"),
        ("ipv6:%5B::1%5D:5123", "::1 5123"),
        ("ipv6:[::ffff:10.0.0.7]:5123", "10.0.0.7 5123"),
        ("unix:", "unix:"),
    ],
)
def test_a_caller_is_called_the_same_by_the_server_and_by_the_socket(peer: str, caller: str) -> None:
    assert caller_of(peer) == caller


# -- callers that say nothing ---------------------------------------------------------------------

_CALLS = 8
_BATCH = pa.record_batch({"body": [b"x"]})


@pytest.fixture
def narrow(small):
    """An endpoint with so small a limit that a few idle calls reach it."""
    server = FlightServer(small.broker, limits=FlightLimits(calls_max=_CALLS))
    yield server
    server.close()


def _watch(server: FlightServer, patience_s: float) -> FlightConnections:
    return FlightConnections(server.port, 100, server.traffic, limits=server.limits, patience_s=patience_s)


def _begin_put(stack: contextlib.ExitStack, client: flight.FlightClient) -> None:
    """A put that has sent its schema, and nothing else ever."""
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("t"), _BATCH.schema)
    stack.callback(_quietly, writer.close)


def _quietly(act) -> None:
    with contextlib.suppress(pa.ArrowException):
        act()


def _client(stack: contextlib.ExitStack, server: FlightServer) -> flight.FlightClient:
    # Each its own connection: by default gRPC lets clients of one address share one.
    options = [("grpc.use_local_subchannel_pool", 1)]
    return stack.enter_context(
        flight.FlightClient(f"grpc://127.0.0.1:{server.port}", generic_options=options)
    )


def _until(is_so) -> None:
    deadline_s = stopwatch_s() + 120
    while not is_so():
        assert stopwatch_s() < deadline_s, "it never came to that"


def _is_full(server: FlightServer) -> bool:
    return server.limits.excess == _CALLS - _CALLS * 3 // 4


def _stores(client: flight.FlightClient) -> bool:
    try:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), _BATCH.schema)
        writer.write_batch(_BATCH)
        is_stored = answers.read() is not None
        writer.close()
    except flight.FlightUnavailableError:
        return False
    return is_stored


def test_silent_calls_give_way_when_nearly_all_are_taken(narrow) -> None:
    with contextlib.ExitStack() as stack:
        silent = [_client(stack, narrow) for _ in range(_CALLS)]
        for client in silent:
            _begin_put(stack, client)
        _until(lambda: _is_full(narrow) and len(narrow.traffic.waits(stopwatch_s(), -1).kept) == _CALLS)
        late = _client(stack, narrow)
        assert not _stores(late)
        assert _watch(narrow, 3_600).look() == 0  # they have not been silent for so long
        # As many go as it takes, those who kept a call waiting the longest; the others stay.
        assert _watch(narrow, -1).look() == 2
        _until(lambda: narrow.limits.excess == 0)
        assert _watch(narrow, -1).look() == 0
        assert _stores(late)


def test_one_connection_with_all_calls_gives_way_too(narrow) -> None:
    with contextlib.ExitStack() as stack:
        client = _client(stack, narrow)
        for _ in range(_CALLS):
            _begin_put(stack, client)
        _until(lambda: sum(narrow.traffic.waits(stopwatch_s(), -1).kept.values()) == _CALLS)
        assert _watch(narrow, -1).look() == 1
        _until(lambda: narrow.limits.excess == 0)
        assert _stores(_client(stack, narrow))


def test_a_call_that_never_says_a_word_gives_way(narrow) -> None:
    """Nothing of it is known but that a call is under way: those from whom nothing comes go."""
    with contextlib.ExitStack() as stack:
        for _ in range(_CALLS):
            http2 = Http2(narrow.port)
            stack.callback(http2.close)
            http2.call(_PUT, b"\x00\x00", ends=False)
        _until(lambda: _is_full(narrow))
        assert narrow.traffic.waits(stopwatch_s(), -1).kept == {}
        assert not _stores(_client(stack, narrow))
        _until(lambda: not _watch(narrow, -1).look() and narrow.limits.excess == 0)
        assert _stores(_client(stack, narrow))


def test_a_first_message_that_trickles_gives_way(narrow) -> None:
    """It is not silent, and nothing is known of its call; but it brings less than 1 KiB a second."""
    watch = FlightConnections(narrow.port, 100, narrow.traffic, limits=narrow.limits)
    with contextlib.ExitStack() as stack:
        callers = [Http2(narrow.port) for _ in range(_CALLS)]
        for http2 in callers:
            stack.callback(http2.close)
        calls = [(http2, http2.call(_PUT, struct.pack(">BI", 0, MIB), ends=False)) for http2 in callers]
        _until(lambda: _is_full(narrow))
        now_s = stopwatch_s()
        assert watch.look(now_s) == 0
        for http2, stream in calls:
            http2.state.send_data(stream, b"x")
            http2.flush()
        assert watch.look(now_s + 9) == 0
        assert watch.look(now_s + 11) == 2
        _until(lambda: narrow.limits.excess == 0)
        assert _stores(_client(stack, narrow))


def test_those_who_do_not_read_give_way(small, narrow) -> None:
    small.broker.send([Draft("large", b"x" * MIB) for _ in range(8)])
    ticket = flight.Ticket(b'{"table": "messages", "topic": "large", "columns": ["body"]}')
    message = bytes((0x0A, len(ticket.ticket))) + ticket.ticket
    with contextlib.ExitStack() as stack:
        for _ in range(_CALLS):
            http2 = Http2(narrow.port)
            stack.callback(http2.close)
            http2.call(_GET, struct.pack(">BI", 0, len(message)) + message)
        _until(lambda: len(narrow.traffic.waits(stopwatch_s(), -1).kept) == _CALLS)
        assert _watch(narrow, -1).look() == 2
        _until(lambda: narrow.limits.excess == 0)
        assert _client(stack, narrow).do_get(ticket).read_all().num_rows == 8


def test_whom_the_server_works_for_stays_however_silent(narrow) -> None:
    traffic = narrow.traffic
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(_connect(narrow))
        caller = caller_at(*connection.getsockname())
        for _ in range(_CALLS):
            narrow.limits.enter()
        stack.enter_context(traffic.call(caller))
        assert traffic.waits(stopwatch_s(), -1) == ({}, {caller})
        assert _watch(narrow, -1).look() == 0
        with traffic.waiting(caller):
            assert traffic.waits(stopwatch_s(), -1) == ({caller: 1}, set())
            assert _watch(narrow, -1).look() == 1
        _wait_for_end(connection)


def test_no_connection_is_closed_below_the_limit(narrow) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(_CALLS * 3 // 4):
            _begin_put(stack, _client(stack, narrow))
        _until(lambda: len(narrow.traffic.waits(stopwatch_s(), -1).kept) == _CALLS * 3 // 4)
        assert _watch(narrow, -1).look() == 0
        assert _stores(_client(stack, narrow))


def test_the_connection_that_waited_longest_is_closed_first() -> None:
    traffic = FlightTraffic()
    with contextlib.ExitStack() as stack:
        for caller in ("first 1", "second 2", "first 1"):
            stack.enter_context(traffic.call(caller))
            stack.enter_context(traffic.waiting(caller))
        later_s = stopwatch_s() + 11
        assert list(traffic.waits(later_s, 10.0).kept.items()) == [("first 1", 2), ("second 2", 1)]
        assert traffic.waits(later_s - 2, 10.0).kept == {}
    assert traffic.waits(later_s, 10.0) == ({}, set())
