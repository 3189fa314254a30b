"""Raw connections to a port, and a client that must go on undisturbed, for tests of wrong clients."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

import tidemill
from acceptance.serving import PATIENCE_S, Served

MIB = 1 << 20
# What a fault may cost while it lasts, beyond what the broker has anyway.
GROWTH_BYTES_MAX = 300 * MIB
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00" + b"\x00" * 4
_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "broker"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def memory_bytes(served: Served) -> int:
    (pid,) = served.broker_pids()
    line = next(li for li in Path(f"/proc/{pid}/status").read_text().splitlines() if li.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def unharmed(served: Served, growth_max: int = GROWTH_BYTES_MAX) -> Iterator[None]:
    """Another caller sends meanwhile; the broker stays the same process and does not grow."""
    (pid,) = served.broker_pids()
    before = memory_bytes(served)
    peak, is_over = before, threading.Event()
    failures: list[BaseException] = []

    def go_on() -> None:
        nonlocal peak
        try:
            with tidemill.Client(served.endpoint, retry_for=0, timeout=f"{PATIENCE_S:.0f}s") as client:
                while not is_over.wait(0.02):
                    client.send("orders", b"meanwhile")
                    peak = max(peak, memory_bytes(served))
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
    assert peak - before < growth_max, f"grew by {(peak - before) // MIB} MiB"
    assert served.broker_pids() == [pid]


def connect(port: int, timeout_s: float = PATIENCE_S) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout_s)


@contextlib.contextmanager
def idle_connections(port: int, count: int) -> Iterator[None]:
    """So many that say nothing, or only hello; skips where a process may not have so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 500:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    connections: list[socket.socket] = []
    try:
        for number in range(count):
            connections.append(connect(port))
            if number % 2:
                connections[-1].sendall(HTTP2_PREFACE)
        yield
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the other side closes; fails when it does not in time."""
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            data += piece
    return bytes(data)


class Http2:
    """One bare HTTP/2 connection."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self.state = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.state.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.state.data_to_send())

    def call(self, path: str, data: bytes, *, ends: bool = True) -> int:
        stream = self.state.get_next_available_stream_id()
        self.state.send_headers(stream, [(":path", path), *_HEADERS])
        self.state.send_data(stream, data, end_stream=ends)
        self.flush()
        return stream

    def begin(self, path: str) -> int:
        """A call of which nothing but the head comes."""
        stream = self.state.get_next_available_stream_id()
        self.state.send_headers(stream, [(":path", path), *_HEADERS])
        self.flush()
        return stream

    def answer_head(self, stream: int) -> dict[str, str]:
        """The head of the answer; empty when the connection is closed before."""
        while data := self.socket.recv(65_536):
            for event in self.state.receive_data(data):
                if isinstance(event, ResponseReceived) and event.stream_id == stream:
                    return dict(event.headers)
            self.flush()
        return {}

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

    def pump(self, stream: int, size: int) -> int:
        """Send as much of so many bytes as is taken; says how much that was."""
        sent = 0
        with contextlib.suppress(OSError, Exception):
            while sent < size:
                window = self.state.local_flow_control_window(stream)
                room = min(window, 65_536, self.state.max_outbound_frame_size)
                if room > 0:
                    self.state.send_data(stream, b"x" * room)
                    sent += room
                    self.flush()
                else:
                    data = self.socket.recv(65_536)
                    if not data:
                        break  # closed by the other side
                    self.state.receive_data(data)
        return sent

    def close(self) -> None:
        self.socket.close()
