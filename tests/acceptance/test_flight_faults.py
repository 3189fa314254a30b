"""Bad callers at the Flight port: refused or closed, and no other caller notices."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import urllib.request

import pyarrow as pa
import pytest

import tidemill
from acceptance.raw_connections import MIB, Http2, connect, idle_connections, read_to_end, unharmed
from acceptance.secured import PERMISSIONS
from acceptance.serving import PATIENCE_S, Served, free_port, wait_until

_SERVICE = "/arrow.flight.protocol.FlightService/"
_PUT = _SERVICE + "DoPut"
_IDLE_CONNECTIONS = 2_000
_CONNECTIONS_MAX = 200


def _serve(directory, *flags: str) -> Served:
    served = Served(directory, "--pipeline", "embedded", "--flight-port", "0", *flags)
    served.prepare("orders")
    return served.start()


def _healthz(served: Served) -> dict:
    with urllib.request.urlopen(f"http://{served.endpoint}/healthz", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def _port(served: Served) -> int:
    return int(_healthz(served)["flight"]["port"])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = _serve(tmp_path_factory.mktemp("flight-faults") / "data")
    yield served
    served.stop()


def test_garbage_bytes_close_the_connection(served):
    with unharmed(served):
        for garbage in (b"\x00" * 4096, bytes(range(256)) * 64, b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n"):
            with connect(_port(served)) as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(garbage)
                read_to_end(connection)


@pytest.mark.parametrize("message", [b"\xff" * 6, b"\x0a\xff\xff\xff\x0f"])
@pytest.mark.parametrize("missing", [0, 1_000])
def test_a_garbage_or_truncated_message_ends_the_call(served, message, missing):
    with unharmed(served), contextlib.closing(Http2(_port(served))) as http2:
        stream = http2.call(_PUT, struct.pack(">BI", 0, len(message) + missing) + message)
        assert http2.grpc_status(stream) != "0"


def test_thousands_of_idle_connections_are_carried(served):
    with unharmed(served), idle_connections(_port(served), _IDLE_CONNECTIONS):
        pass


def test_more_connections_than_allowed_are_closed(tmp_path):
    served = _serve(tmp_path / "data", "--max-connections", str(_CONNECTIONS_MAX))
    try:
        with unharmed(served), contextlib.ExitStack() as stack:
            port = _port(served)
            connections = [stack.enter_context(connect(port)) for _ in range(_CONNECTIONS_MAX + 50)]
            for connection in connections[_CONNECTIONS_MAX:]:
                read_to_end(connection)
            wait_until(lambda: "more than --max-connections" in served.log(), "a word of it in the log")
    finally:
        served.stop()


@pytest.mark.parametrize("method", ["DoPut", "DoGet", "DoAction"])
def test_a_gibibyte_is_cut_off_before_it_is_gathered(served, method):
    # What is gathered before it is noticed depends on how busy the machine is; here it is about 100 MiB.
    with unharmed(served, 700 * MIB), contextlib.closing(Http2(_port(served))) as http2:
        stream = http2.call(_SERVICE + method, struct.pack(">BI", 0, 1 << 30), ends=False)
        assert http2.pump(stream, 1 << 30) < 1 << 30
        read_to_end(http2.socket)
    wait_until(lambda: "too many request bytes at once" in served.log(), "a word of it in the log")


def test_callers_that_never_read_are_left_waiting_alone(served):
    with tidemill.Client(served.endpoint) as client:
        client.send_many([tidemill.Draft("large", os.urandom(MIB)) for _ in range(40)])
    ticket = b'{"table": "messages", "topic": "large", "columns": ["body"]}'
    with unharmed(served, 700 * MIB), contextlib.ExitStack() as stack:
        for _ in range(20):
            http2 = Http2(_port(served))
            stack.callback(http2.close)
            message = bytes((0x0A, len(ticket))) + ticket
            http2.call(_SERVICE + "DoGet", struct.pack(">BI", 0, len(message)) + message)
        with tidemill.Client(served.endpoint) as client:
            assert client.tables.pending("large").num_rows == 0


def test_a_silent_stream_delays_no_other(served):
    with unharmed(served), contextlib.ExitStack() as stack:
        for _ in range(50):
            http2 = Http2(_port(served))
            stack.callback(http2.close)
            http2.call(_PUT, b"\x00\x00", ends=False)
        with tidemill.Client(served.endpoint) as client:
            assert (
                len(client.schedule(pa.table({"body": [b"x"] * 1000, "delay_ms": [1] * 1000}), topic="t"))
                == 1000
            )


def test_nothing_is_gathered_of_a_caller_without_a_token(tmp_path):
    permissions = tmp_path / "permissions.toml"
    permissions.write_text(PERMISSIONS)
    served = _serve(tmp_path / "data", "--auth", str(permissions))
    try:
        with contextlib.closing(Http2(_port(served))) as http2:
            stream = http2.call(_PUT, struct.pack(">BI", 0, 1 << 30) + b"the beginning", ends=False)
            assert http2.grpc_status(stream) != "0"  # answered though the message is not there
        # What is not a stream is collected before any check, and cut off as without a token.
        with contextlib.closing(Http2(_port(served))) as http2:
            stream = http2.call(_SERVICE + "DoGet", struct.pack(">BI", 0, 1 << 30), ends=False)
            assert http2.pump(stream, 1 << 30) < 1 << 30
    finally:
        served.stop()


def test_a_port_that_is_taken_between_two_lives_keeps_out_nothing_but_flight(tmp_path):
    port = free_port()
    served = Served(tmp_path / "data", "--pipeline", "embedded", "--flight-port", str(port))
    served.prepare("orders")
    table = pa.table({"body": ["b"], "delay_ms": [1]})
    try:
        served.start()
        (killed,) = served.broker_pids()
        served.kill_broker()
        with _taken(port):
            wait_until(lambda: served.broker_pids() not in ([], [killed]), "another broker process")
            wait_until(served.is_ready, "the broker without Flight")
            with tidemill.Client(served.endpoint) as client:
                assert not client.schedule(table, topic="orders").errors  # by the other endpoint
                wait_until(lambda: client.status().released == 1, "the release")
            assert "Flight is unavailable until its port is free" in served.log()
        wait_until(lambda: _healthz(served).get("flight", {}).get("port") == port, "Flight")
        with tidemill.Client(served.endpoint) as client:
            assert client.tables.history("orders").num_rows == 1
        assert served.stop() == 0
    finally:
        served.stop()


def _taken(port: int) -> socket.socket:
    """Another process at a port, as soon as it is free."""
    found: list[socket.socket] = []

    def is_had() -> bool:
        with contextlib.suppress(OSError):
            found.append(socket.create_server(("127.0.0.1", port)))
        return bool(found)

    wait_until(is_had, f"port {port}")
    return found[0]
