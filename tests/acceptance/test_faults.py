"""Bad callers on real sockets: each gets a clear code or a closed connection, and no other caller notices."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import tidemill
from acceptance.raw_connections import MIB, Http2, connect, idle_connections, read_to_end, unharmed
from acceptance.serving import PATIENCE_S, Served, wait_until
from tidemill.core.clock import stopwatch_s
from tidemill.server.grpc.protocol import SERVICE, service

_FLAGS = ("--pipeline", "embedded", "--flight-port", "-1")
_IDLE_CONNECTIONS = 2_000
_SEND = SERVICE + "SendMessage"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("faults") / "data", *_FLAGS)
    served.prepare("orders", "large")
    yield served.start()
    served.stop()


@pytest.fixture
def http2(served):
    connection = Http2(served.port)
    yield connection
    connection.close()


def test_garbage_bytes_close_the_connection(served):
    with unharmed(served):
        for garbage in (b"\x00" * 4096, bytes(range(256)) * 64, b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n"):
            with connect(served.port) as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(garbage)
                answer = read_to_end(connection)
                assert not answer or answer.startswith(b"HTTP/1.1 4") or b"\x07" in answer[:64]


def test_a_garbage_message_is_an_invalid_argument(served, http2):
    with unharmed(served):
        stream = http2.call(_SEND, struct.pack(">BI", 0, 6) + b"\xff" * 6)
        assert http2.grpc_status(stream) == "3"


def test_a_truncated_message_is_reported(served, http2):
    with unharmed(served):
        stream = http2.call(_SEND, struct.pack(">BI", 0, 1000) + b"only this")
        assert http2.grpc_status(stream) == "13"


@pytest.mark.parametrize(
    ("method", "size"), [("SendMessage", 1 << 30), ("Telemetry", MIB), ("ReceiveMessage", MIB)]
)
def test_too_much_is_refused_as_soon_as_it_is_announced(served, http2, method, size):
    with unharmed(served):
        stream = http2.call(SERVICE + method, struct.pack(">BI", 0, size) + b"x" * 1000, ends=False)
        assert http2.grpc_status(stream) == "8"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/send-batch"])
def test_a_gibibyte_over_http_is_refused_as_soon_as_it_is_announced(served, path):
    with unharmed(served), connect(served.port) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {1 << 30}\r\n\r\n{{".encode())
        answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 413") and b"body-too-large" in answer


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/send-batch", "/v1/messages/many"])
def test_a_gibibyte_over_http_is_not_gathered(served, path):
    with unharmed(served), connect(served.port) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {1 << 30}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n")
        piece = b"x" * MIB
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 1 << 30:
                connection.sendall(piece)
                sent += len(piece)
        assert sent < 256 * MIB, "it should have been cut off"
        answer = b""
        with contextlib.suppress(OSError):
            answer = read_to_end(connection)
        assert not answer or answer.startswith(b"HTTP/1.1 413")


def test_many_large_requests_that_never_end_are_bounded(served):
    # 720 MiB are offered; the broker gathers 96 MiB of them, and Envoy has its own buffers.
    with unharmed(served, 180 * MIB):
        connections = []
        try:
            for _ in range(12):
                connection = Http2(served.port)
                connections.append(connection)
                stream = connection.call(_SEND, struct.pack(">BI", 0, 63 * MIB), ends=False)
                connection.socket.settimeout(0.5)
                connection.pump(stream, 60 * MIB)
        finally:
            for connection in connections:
                connection.close()
    wait_until(lambda: _sends(served), "space again")


def _sends(served: Served) -> bool:
    with grpc.insecure_channel(served.endpoint) as channel:
        method = channel.unary_unary(SERVICE + "Heartbeat")
        return bool(method(service.HeartbeatRequest().SerializeToString(), timeout=PATIENCE_S))


def test_thousands_of_idle_connections_are_carried(served):
    with unharmed(served), idle_connections(served.port, _IDLE_CONNECTIONS):
        pass


def test_more_connections_than_allowed_are_closed(tmp_path):
    served = Served(tmp_path / "data", *_FLAGS, "--max-connections", "50")
    connections = []
    try:
        served.start()
        connections += [connect(served.port) for _ in range(50)]
        closed = 0
        for _ in range(20):
            with connect(served.port, 2) as one_more, contextlib.suppress(TimeoutError):
                closed += not read_to_end(one_more)
        assert closed >= 15
        for connection in connections:
            connection.close()
        wait_until(served.is_ready, "place for others")
    finally:
        served.stop()


def test_a_client_that_never_reads_is_left_waiting_alone(served):
    with tidemill.Client(served.endpoint) as client:
        client.send_many([tidemill.Draft("large", os.urandom(MIB)) for _ in range(60)])
    with unharmed(served):
        connections = []
        for number in range(10):
            connection = connect(served.port)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            content = b'{"topic": "large", "group": "deaf-%d", "count": 32}' % number
            head = b"POST /v1/receive HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            connections.append(connection)
            threading.Event().wait(0.3)
        for connection in connections:
            connection.close()


def test_calls_that_are_given_up_leave_no_trace_in_the_log(served, http2):
    with unharmed(served), tidemill.Client(served.endpoint, retry_for=0) as client:
        for number in range(5):
            assert not client.receive_batch("orders", f"nobody-{number}", wait=0.05, tags=["none such"])
        request = service.ReceiveMessageRequest(batch_size=1)
        request.message_queue.topic.name = "large"
        request.filter_expression.expression = "none-such"
        with grpc.insecure_channel(served.endpoint) as channel:
            receive = channel.unary_stream(SERVICE + "ReceiveMessage")
            converse = channel.stream_stream(SERVICE + "Telemetry")
            for number in range(5):
                request.group.name = f"hurried-{number}"
                poll = receive(request.SerializeToString(), timeout=20)
                _wait_for_group(client, request.group.name)
                poll.cancel()
                with pytest.raises(grpc.RpcError):
                    list(converse(_never_ends(), timeout=0.1))
        for _ in range(5):
            stream = http2.call(_SEND, struct.pack(">BI", 0, 1000) + b"the beginning", ends=False)
            http2.state.reset_stream(stream)
            http2.flush()
        client.send("orders", b"all of that has been dealt with")
    assert "Traceback" not in served.log()
    assert "InvalidStateError" not in served.log()


def _wait_for_group(client: tidemill.Client, name: str) -> None:
    """A poll has begun when its group is there."""
    wait_until(lambda: any(group.name == name for group in client.groups.list()), f"a poll of {name}")


def _never_ends() -> Iterator[bytes]:
    threading.Event().wait(1)
    yield b""


def test_a_consumer_that_leaves_while_it_waits_takes_nothing_along(served):
    with tidemill.Client(served.endpoint) as client:
        client.topics.create("left")
        with connect(served.port) as connection:
            content = b'{"topic": "left", "group": "g", "wait_ms": 20000, "lease_ms": 600000}'
            head = b"POST /v1/receive HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            _wait_for_group(client, "g")
        client.send("left", b"for a user who exists")
        (message,) = client.receive_batch("left", "g", wait="60s")
        assert message.text == "for a user who exists"


def test_a_head_that_never_ends_is_cut_off(served):
    with unharmed(served), connect(served.port, 0.5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: b\r\n")
        began_s = stopwatch_s()
        answer = None
        while answer is None and stopwatch_s() - began_s < PATIENCE_S:
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(b"X-Slow: 1\r\n")
                    answer = connection.recv(4096)
                except ConnectionError:
                    answer = b""
        assert answer is not None, "it was kept for ever"
        assert not answer or answer.startswith(b"HTTP/1.1 408")


@pytest.fixture
def hurried(tmp_path):
    served = Served(tmp_path / "data", *_FLAGS)
    served.program = (str(Path(__file__).with_name("short_limits_serve.py")),)
    served.prepare("orders")
    yield served.start()
    served.stop()


def test_a_body_that_never_begins_is_given_up_and_no_long_poll_is(hurried):
    def say_and_stay() -> Iterator[bytes]:
        command = service.TelemetryCommand()
        command.settings.publishing.topics.add().name = "orders"
        yield command.SerializeToString()
        is_over.wait(PATIENCE_S)

    is_over, http2 = threading.Event(), Http2(hurried.port)
    head = b"POST /v1/messages HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
    with grpc.insecure_channel(hurried.endpoint) as channel, tidemill.Client(hurried.endpoint) as client:
        talk = channel.stream_stream(SERVICE + "Telemetry")(say_and_stay(), timeout=PATIENCE_S)
        assert next(talk)
        with connect(hurried.port) as connection:
            connection.sendall(head + b"Content-Length: 50\r\n\r\n")
            assert read_to_end(connection).startswith(b"HTTP/1.1 408")
        assert http2.answer_head(http2.begin(_SEND))["grpc-status"] == "2"
        assert client.receive_batch("orders", "patient", wait="2s") == []
        assert talk.is_active()
        is_over.set()
    http2.close()
    assert "Traceback" not in hurried.log()


def test_a_head_that_is_too_large_is_refused(served):
    with unharmed(served), connect(served.port) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: b\r\n" + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n")
        answer = read_to_end(connection)
        assert not answer or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
