"""Bad callers at the Flight port: told or closed, and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import struct
import urllib.request

import pytest

from acceptance.bad_callers import Http2, connect, idle_connections, read_to_end, unharmed
from acceptance.secured import PERMISSIONS
from acceptance.serving import PATIENCE_S, Served, wait_until

_PUT = "/arrow.flight.protocol.FlightService/DoPut"
_IDLE_CONNECTIONS = 2_000
_CONNECTIONS_MAX = 200


def _serve(directory, *flags: str) -> Served:
    served = Served(directory, "--pipeline", "embedded", "--flight-port", "0", *flags)
    served.prepare("orders")
    return served.start()


def _port(served: Served) -> int:
    with urllib.request.urlopen(f"http://{served.endpoint}/healthz", timeout=PATIENCE_S) as answer:
        return int(json.load(answer)["flight"]["port"])


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
            wait_until(lambda: "raise --max-connections" in served.log(), "a word of it in the log")
    finally:
        served.stop()


def test_nothing_is_gathered_of_a_caller_without_a_token(tmp_path):
    permissions = tmp_path / "permissions.toml"
    permissions.write_text(PERMISSIONS)
    served = _serve(tmp_path / "data", "--auth", str(permissions))
    try:
        with contextlib.closing(Http2(_port(served))) as http2:
            stream = http2.call(_PUT, struct.pack(">BI", 0, 1 << 30) + b"the beginning", ends=False)
            assert http2.grpc_status(stream) != "0"  # answered though the message is not there
    finally:
        served.stop()
