"""Bad callers on real sockets: each gets a clear code or a closed connection, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, StreamEnded, StreamReset, TrailersReceived

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.core.clock import stopwatch_s
from tidemill.server.protocol import SERVICE, service

_MIB = 1 << 20
_FLAGS = ("--pipeline", "embedded", "--flight-port", "-1")
# What a fault may cost while it lasts, beyond what the broker has anyway.
_GROWTH_BYTES_MAX = 300 * _MIB
_IDLE_CONNECTIONS = 2_000
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00" + b"\x00" * 4
_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "broker"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("faults") / "data", *_FLAGS)
    served.prepare("orders", "large")
    yield served.start()
    served.stop()


def _memory_bytes(served: Served) -> int:
    (pid,) = served.broker_pids()
    line = next(li for li in Path(f"/proc/{pid}/status").read_text().splitlines() if li.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def _unharmed(served: Served, growth_max: int = _GROWTH_BYTES_MAX) -> Iterator[None]:
    """Somebody sends and receives all the while; the broker stays the same process and does not grow."""
    (pid,) = served.broker_pids()
    before = _memory_bytes(served)
    slowest_s, peak, is_over = 0.0, before, threading.Event()
    failures: list[BaseException] = []

    def go_on() -> None:
        nonlocal slowest_s, peak
        try:
            with tidemill.Client(served.endpoint, retry_for=0) as client:
                while not is_over.wait(0.02):
                    began_s = stopwatch_s()
                    client.send("orders", b"meanwhile")
                    slowest_s = max(slowest_s, stopwatch_s() - began_s)
                    peak = max(peak, _memory_bytes(served))
        except BaseException as error:
            failures.append(error)

    bystander = threading.Thread(target=go_on)
    bystander.start()
    try:
        yield
    finally:
        is_over.set()
        bystander.join()
    assert not failures
    assert slowest_s < 3.0
    assert peak - before < growth_max, f"grew by {(peak - before) // _MIB} MiB"
    assert served.broker_pids() == [pid]


def _connect(served: Served, timeout_s: float = 14.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout_s)


def _read_to_end(connection: socket.socket) -> bytes:
    """Everything until the other side closes; fails when it does not in time."""
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            data += piece
    return bytes(data)


class _Http2:
    """One bare HTTP/2 connection."""

    def __init__(self, served: Served) -> None:
        self.socket = _connect(served)
        self.state = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.state.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.state.data_to_send())

    def call(self, method: str, data: bytes, *, ends: bool = True) -> int:
        stream = self.state.get_next_available_stream_id()
        self.state.send_headers(stream, [(":path", SERVICE + method), *_HEADERS])
        self.state.send_data(stream, data, end_stream=ends)
        self.flush()
        return stream

    def grpc_status(self, stream: int) -> str:
        """The call's `grpc-status`, or how it ended otherwise."""
        while True:
            data = self.socket.recv(65_536)
            if not data:
                return "closed"
            for event in self.state.receive_data(data):
                if isinstance(event, TrailersReceived) and event.stream_id == stream:
                    return dict(event.headers)["grpc-status"]
                if isinstance(event, StreamReset | StreamEnded) and event.stream_id == stream:
                    return "reset"
                if isinstance(event, ConnectionTerminated):
                    return "closed"
                if isinstance(event, DataReceived):
                    self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.flush()

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def http2(served):
    connection = _Http2(served)
    yield connection
    connection.close()


def test_garbage_bytes_close_the_connection(served):
    with _unharmed(served):
        for garbage in (b"\x00" * 4096, bytes(range(256)) * 64, b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n"):
            with _connect(served) as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(garbage)
                answer = _read_to_end(connection)
                assert not answer or answer.startswith(b"HTTP/1.1 4") or b"\x07" in answer[:64]


def test_a_garbage_message_is_an_invalid_argument(served, http2):
    with _unharmed(served):
        stream = http2.call("SendMessage", struct.pack(">BI", 0, 6) + b"\xff" * 6)
        assert http2.grpc_status(stream) == "3"


def test_a_truncated_message_is_told(served, http2):
    with _unharmed(served):
        stream = http2.call("SendMessage", struct.pack(">BI", 0, 1000) + b"only this")
        assert http2.grpc_status(stream) == "13"


def test_a_gibibyte_is_refused_as_soon_as_it_is_announced(served, http2):
    with _unharmed(served):
        began_s = stopwatch_s()
        stream = http2.call("SendMessage", struct.pack(">BI", 0, 1 << 30) + b"x" * 1000, ends=False)
        assert http2.grpc_status(stream) == "8"
        assert stopwatch_s() - began_s < 5


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/send-batch", "/v1/messages/many"])
def test_a_gibibyte_over_http_is_not_gathered(served, path):
    with _unharmed(served), _connect(served) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {1 << 30}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n")
        piece = b"x" * _MIB
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 1 << 30:
                connection.sendall(piece)
                sent += len(piece)
        assert sent < 256 * _MIB, "it should have been cut off"
        answer = b""
        with contextlib.suppress(OSError):
            answer = _read_to_end(connection)
        assert not answer or answer.startswith(b"HTTP/1.1 413")


def test_many_large_requests_that_never_end_are_bounded(served):
    # 720 MiB are offered; the broker gathers 96 MiB of them, and Envoy has its own buffers.
    with _unharmed(served, 180 * _MIB):
        connections = []
        try:
            for _ in range(12):
                connection = _Http2(served)
                connections.append(connection)
                stream = connection.call("SendMessage", struct.pack(">BI", 0, 63 * _MIB), ends=False)
                connection.socket.settimeout(0.5)
                _pump(connection, stream, 60 * _MIB)
        finally:
            for connection in connections:
                connection.close()
    wait_until(lambda: _sends(served), "room again", 10)


def _pump(connection: _Http2, stream: int, size: int) -> None:
    """Send as much as is taken."""
    state = connection.state
    sent = 0
    with contextlib.suppress(OSError, Exception):
        while sent < size:
            room = min(state.local_flow_control_window(stream), 65_536, state.max_outbound_frame_size)
            if room > 0:
                state.send_data(stream, b"x" * room)
                sent += room
                connection.flush()
            else:
                state.receive_data(connection.socket.recv(65_536))


def _sends(served: Served) -> bool:
    with grpc.insecure_channel(served.endpoint) as channel:
        method = channel.unary_unary(SERVICE + "Heartbeat")
        return bool(method(service.HeartbeatRequest().SerializeToString(), timeout=5))


def test_thousands_of_idle_connections_are_carried(served):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _IDLE_CONNECTIONS + 500:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _IDLE_CONNECTIONS + 500), hard))
    connections: list[socket.socket] = []
    try:
        with _unharmed(served):
            for number in range(_IDLE_CONNECTIONS):
                connections.append(_connect(served))
                if number % 2:
                    connections[-1].sendall(
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00" + b"\x00" * 4
                    )
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_connections_than_allowed_are_closed(tmp_path):
    served = Served(tmp_path / "data", *_FLAGS, "--max-connections", "50")
    connections = []
    try:
        served.start()
        connections += [_connect(served) for _ in range(50)]
        closed = 0
        for _ in range(20):
            with _connect(served, 2) as one_more, contextlib.suppress(TimeoutError):
                closed += not _read_to_end(one_more)
        assert closed >= 15
        for connection in connections:
            connection.close()
        wait_until(served.is_ready, "room for others", 10)
    finally:
        served.stop()


def test_a_client_that_never_reads_is_left_waiting_alone(served):
    with tidemill.Client(served.endpoint) as client:
        client.send_many([tidemill.Draft("large", os.urandom(_MIB)) for _ in range(60)])
    with _unharmed(served):
        connections = []
        for number in range(10):
            connection = _connect(served)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            content = b'{"topic": "large", "group": "deaf-%d", "count": 32}' % number
            head = b"POST /v1/receive HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            connections.append(connection)
            threading.Event().wait(0.3)
        for connection in connections:
            connection.close()


def test_calls_that_are_given_up_leave_no_trace_in_the_log(served, http2):
    with _unharmed(served), tidemill.Client(served.endpoint, retry_for=0) as client:
        for number in range(5):
            assert not client.receive_batch("orders", f"nobody-{number}", wait=50, tags=["none such"])
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
            stream = http2.call("SendMessage", struct.pack(">BI", 0, 1000) + b"the beginning", ends=False)
            http2.state.reset_stream(stream)
            http2.flush()
        client.send("orders", b"all of that has been dealt with")
    assert "Traceback" not in served.log()
    assert "InvalidStateError" not in served.log()


def _wait_for_group(client: tidemill.Client, name: str) -> None:
    """A poll has begun when its group is there."""
    wait_until(lambda: any(group.name == name for group in client.groups()), f"a poll of {name}", 10)


def _never_ends() -> Iterator[bytes]:
    threading.Event().wait(1)
    yield b""


def test_a_consumer_that_leaves_while_it_waits_takes_nothing_along(served):
    with tidemill.Client(served.endpoint) as client:
        client.create_topic("left")
        with _connect(served) as connection:
            content = b'{"topic": "left", "group": "g", "wait_ms": 20000, "invisible_ms": 600000}'
            head = b"POST /v1/receive HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            _wait_for_group(client, "g")
        client.send("left", b"for somebody who is there")
        (message,) = client.receive_batch("left", "g", wait="5s")
        assert message.text == "for somebody who is there"


def test_a_head_that_never_ends_is_cut_off(served):
    with _unharmed(served), _connect(served, 0.5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: b\r\n")
        began_s = stopwatch_s()
        answer = None
        while answer is None and stopwatch_s() - began_s < 14:
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(b"X-Slow: 1\r\n")
                    answer = connection.recv(4096)
                except ConnectionError:
                    answer = b""
        assert answer is not None, "it was kept for ever"
        assert not answer or answer.startswith(b"HTTP/1.1 408")


def test_a_head_that_is_too_large_is_refused(served):
    with _unharmed(served), _connect(served) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: b\r\n" + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n")
        answer = _read_to_end(connection)
        assert not answer or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
