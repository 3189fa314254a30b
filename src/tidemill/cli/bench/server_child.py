"""The gRPC load generator: SendMessage calls as ready-made HTTP/2 frames, so many in flight, perhaps paced.

Run as `python -m tidemill.cli.bench.server_child ENDPOINT TOPIC IN_FLIGHT SECONDS RATE DELAY_MS`; it prints a
line when it is ready, waits for one on standard input, and prints a JSON object at the end. A RATE of 0 is as
fast as it goes. Requests are made beforehand; each message has an id of its own and 100 bytes; every answer
is decoded and checked.

A client library would take more of the two cores than the broker that is measured. So this one speaks just
enough HTTP/2 for a server it knows: no compression of headers, one request a stream, flow control kept.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import socket
import struct
import sys

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.server.grpc.protocol import SERVICE, Code, definition, service

_PER_SECOND_MAX = 25_000
_PATIENCE_S = 30.0
_CONNECTIONS = 4
_READ_BYTES = 1 << 18
_AT_ONCE = 256

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_WINDOW = 65_535  # what a connection may send before a WINDOW_UPDATE
_ANSWER_WINDOW = (1 << 31) - 1 - _WINDOW
_MESSAGE_PREFIX = struct.Struct(">BI")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload) << 8 | kind) + struct.pack(">BI", flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field that is neither compressed nor remembered."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


def _header_block(authority: str) -> bytes:
    pseudo = b"\x83\x86" + _literal(b":path", (SERVICE + "SendMessage").encode())  # POST, http
    pseudo += _literal(b":authority", authority.encode())
    return pseudo + _literal(b"content-type", b"application/grpc") + _literal(b"te", b"trailers")


class _Connection:
    """One HTTP/2 connection. `fill` sends, `drain` takes answers."""

    def __init__(self, endpoint: str, in_flight_max: int) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), _PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = _header_block(endpoint)
        self._in_flight_max = in_flight_max
        self._window = _WINDOW
        self._next_stream = 1
        self._unread = b""
        self._due_s: dict[int, float] = {}
        self._is_good: dict[int, bool] = {}
        self.late_s: list[float] = []
        self.good = self.bad = 0
        window = struct.pack(">I", _ANSWER_WINDOW)
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_WINDOW_UPDATE, 0, 0, window))

    @property
    def in_flight(self) -> int:
        return len(self._due_s)

    def has_window(self, size: int) -> bool:
        return len(self._due_s) < self._in_flight_max and self._window >= size

    def request(self, body: bytes, due_s: float) -> bytes:
        """The frames of one call; it counts as sent."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._due_s[stream] = due_s
        self._window -= len(body)
        return _frame(_HEADERS, _END_HEADERS, stream, self._headers) + _frame(
            _DATA, _END_STREAM, stream, body
        )

    def drain(self) -> None:
        """Read the answers that have arrived."""
        came = self.socket.recv(_READ_BYTES)
        if not came:
            raise StorageError("the broker closed a connection under load")
        data = self._unread + came
        at = 0
        while len(data) - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + length:
                break
            stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFF_FFFF
            self._take(data[at + 3], data[at + 4], stream, data[at + 9 : at + 9 + length])
            at += 9 + length
        self._unread = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA and payload:
            answer = service.SendMessageResponse.FromString(payload[_MESSAGE_PREFIX.size :])
            self._is_good[stream] = answer.status.code == Code.OK and len(answer.entries) == 1
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GOAWAY:
            raise StorageError("the broker sent GOAWAY under load")
        if stream and (kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)):
            self.late_s.append(stopwatch_s() - self._due_s.pop(stream))
            is_good = self._is_good.pop(stream, False)
            self.good += is_good
            self.bad += not is_good


class Generator:
    """Sends requests over a few connections and counts the answers. One thread."""

    def __init__(self, endpoint: str, in_flight: int) -> None:
        count = min(_CONNECTIONS, in_flight)
        self._connections = [_Connection(endpoint, in_flight // count) for _ in range(count)]
        self._selector = selectors.DefaultSelector()
        for connection in self._connections:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def run(self, requests: list[bytes], seconds: float, rate: float) -> float:
        """Send until the time is over; returns the seconds until the last answer."""
        begun_s = stopwatch_s()
        sent = 0
        while True:
            now_s = stopwatch_s()
            is_over = now_s > begun_s + seconds or sent == len(requests)
            wait_s = 1.0
            if not is_over:
                end = min(len(requests), int((now_s - begun_s) * rate) + 1) if rate else sent + _AT_ONCE
                sent += self._fill(requests[sent:end], begun_s, sent, rate)
                if rate and sent >= end:  # else the window is full, and an answer ends the wait
                    wait_s = min(wait_s, begun_s + sent / rate - stopwatch_s())
            elif not any(connection.in_flight for connection in self._connections):
                return stopwatch_s() - begun_s
            for key, _ in self._selector.select(max(0.0, wait_s)):
                key.data.drain()
            if stopwatch_s() > begun_s + seconds + _PATIENCE_S:
                raise StorageError("the broker did not answer all calls; the figures would mean nothing")

    def _fill(self, requests: list[bytes], begun_s: float, first: int, rate: float) -> int:
        """Send as many as the windows allow; a paced call counts from the time it was planned for."""
        sent = 0
        for connection in self._connections:
            frames = []
            while sent < len(requests) and connection.has_window(len(requests[sent])):
                due_s = begun_s + (first + sent) / rate if rate else stopwatch_s()
                frames.append(connection.request(requests[sent], due_s))
                sent += 1
            if frames:
                connection.socket.sendall(b"".join(frames))
        return sent

    def result(self, took_s: float) -> dict[str, object]:
        late_s = sorted(late for connection in self._connections for late in connection.late_s)
        return {
            "good": sum(connection.good for connection in self._connections),
            "bad": sum(connection.bad for connection in self._connections),
            "took_s": took_s,
            "late_ms": [round(late * 1000, 3) for late in late_s],
        }


def requests_of(topic: str, count: int, delay_ms: int) -> list[bytes]:
    """The bodies of calls, each with one message."""
    prefix, body = os.urandom(8).hex(), os.urandom(100)
    made = []
    for number in range(count):
        message = definition.Message(body=body)
        message.topic.name = topic
        message.system_properties.message_id = f"{prefix}{number:08x}"
        message.user_properties["__delay_ms"] = str(delay_ms)
        request = service.SendMessageRequest(messages=[message]).SerializeToString()
        made.append(_MESSAGE_PREFIX.pack(0, len(request)) + request)
    return made


def main(endpoint: str, topic: str, in_flight: int, seconds: float, rate: float, delay_ms: int) -> None:
    requests = requests_of(topic, int(seconds * (rate or _PER_SECOND_MAX)) + 1, delay_ms)
    generator = Generator(endpoint, in_flight)
    gc.freeze()  # a collection would count as the broker's time
    gc.disable()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(generator.result(generator.run(requests, seconds, rate))), flush=True)


if __name__ == "__main__":
    where, name, *numbers = sys.argv[1:]
    main(where, name, int(numbers[0]), float(numbers[1]), float(numbers[2]), int(numbers[3]))
