"""The Unix socket: sends use it once the broker has named it, and the port whenever it fails."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from contextlib import ExitStack

import pytest

from tidemill.client.transport import unix_transport as short_way
from tidemill.client.transport.connection import ConnectionLostError
from tidemill.client.transport.endpoint import Answer, Endpoint
from tidemill.client.transport.unix_transport import AsyncUnixTransport, KnownSocket, UnixTransport
from tidemill.core.addresses import unix_socket_address
from tidemill.core.limits import LOCAL_REQUEST_BYTES_MAX

_NEAR = Endpoint("127.0.0.1", 8081)
_OK = b"HTTP/1.1 200 \r\ncontent-length: 6\r\n\r\nsocket"


class FakeSocket:
    """A Unix socket that answers `scripts` one after the other, and hangs up after part of one."""

    def __init__(self, *scripts: bytes) -> None:
        self.name = f"tidemill-8081-{secrets.token_hex(8)}"
        self._scripts = list(scripts)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(unix_socket_address(self.name))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._scripts:
            connection, _ = self._listener.accept()
            with connection:
                while self._scripts and connection.recv(1 << 20):
                    script = self._scripts.pop(0)
                    connection.sendall(script)
                    if script not in (_OK, b""):
                        break
        self._listener.close()

    def ended(self) -> None:
        self._thread.join(30)


class Port:
    """What a pool on the port answers: that it was asked, and the name of the socket."""

    def __init__(self, listener: str) -> None:
        self.listener = listener

    def exchange(self, head: bytes, content: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        return Answer(200, b"port", self.listener)


class AsyncPort(Port):
    async def exchange(self, head, content, timeout_s, *, is_repeatable):
        return super().exchange(head, content, timeout_s, is_repeatable=is_repeatable)


def _ask(way: UnixTransport, size: int = 1) -> bytes:
    answer = way.exchange(b"POST / HTTP/1.1\r\nContent-Length: ", bytes(size), 5.0, is_repeatable=True)
    return answer.content


@pytest.fixture
def way_to():
    """Makes short ways, and closes them at the end."""
    with ExitStack() as stack:

        def way(listener: str) -> UnixTransport:
            made = UnixTransport(_NEAR, Port(listener), 5.0)
            stack.callback(made.close)
            return made

        yield way


def test_the_first_send_goes_by_the_port_and_learns_the_socket(way_to) -> None:
    listener = FakeSocket(_OK, _OK)
    way = way_to(listener.name)
    assert [_ask(way) for _ in range(3)] == [b"port", b"socket", b"socket"]


def test_tasks_go_the_same_way() -> None:
    async def ask_thrice() -> list[bytes]:
        listener = FakeSocket(_OK, _OK)
        way = AsyncUnixTransport(_NEAR, AsyncPort(listener.name))
        head = b"POST / HTTP/1.1\r\nContent-Length: "
        answers = [await way.exchange(head, b"x", 5.0, is_repeatable=True) for _ in range(3)]
        way.close()
        return [answer.content for answer in answers]

    assert asyncio.run(ask_thrice()) == [b"port", b"socket", b"socket"]


def test_a_socket_that_is_gone_is_passed_without_an_error(way_to) -> None:
    listener = FakeSocket(_OK)
    way = way_to(listener.name)
    assert [_ask(way), _ask(way)] == [b"port", b"socket"]
    listener.ended()
    assert [_ask(way), _ask(way)] == [b"port", b"port"]


def test_an_answer_that_is_lost_is_asked_for_again_by_the_port(way_to) -> None:
    listener = FakeSocket(b"HTTP/1.1 200 \r\ncontent-le")
    way = way_to(listener.name)
    assert [_ask(way) for _ in range(3)] == [b"port"] * 3


def test_a_send_that_timed_out_fails_and_the_next_goes_by_the_port(way_to) -> None:
    listener = FakeSocket(b"", _OK)  # says nothing
    way = way_to(listener.name)
    _ask(way)
    with pytest.raises(ConnectionLostError, match="no answer within"):
        way.exchange(b"POST / HTTP/1.1\r\nContent-Length: ", b"x", 0.05, is_repeatable=True)
    assert _ask(way) == b"port"


def test_the_socket_of_another_user_is_not_used(monkeypatch, way_to) -> None:
    listener = FakeSocket(_OK)
    way = way_to(listener.name)
    monkeypatch.setattr(short_way, "_ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4_242_424)
    assert [_ask(way) for _ in range(3)] == [b"port"] * 3


def test_what_is_large_goes_by_the_port(way_to) -> None:
    listener = FakeSocket(_OK)
    way = way_to(listener.name)
    _ask(way)
    assert _ask(way, LOCAL_REQUEST_BYTES_MAX + 1) == b"port"
    assert _ask(way) == b"socket"


@pytest.mark.parametrize(
    ("endpoint", "is_near"),
    [
        (Endpoint("127.0.0.1", 8081), True),
        (Endpoint("127.1.2.3", 8081), True),
        (Endpoint("::1", 8081), True),
        (Endpoint("localhost", 8081), True),
        (Endpoint("127.0.0.1", 8081, is_tls=True), False),
        (Endpoint("192.0.2.7", 8081), False),
        (Endpoint("broker.example", 8081), False),
        (Endpoint("0.0.0.0", 8081), False),
        (Endpoint("127.0.0.1", 8080), False),  # a proxy, or a tunnel
    ],
)
def test_only_a_broker_on_this_machine_and_without_tls_has_one(endpoint, is_near) -> None:
    assert KnownSocket(endpoint).is_new("tidemill-8081-abc123") is is_near


_OTHER_NAMES = [
    *("", "other", "tidemill-", "tidemill-8081-", "tidemill-8081-xyz", "tidemill-8081-a\n"),
    *("tidemill-a-a", "tidemill-123456-a", "tidemill-8081-" + "a" * 65),
]


@pytest.mark.parametrize("name", _OTHER_NAMES)
def test_a_name_that_is_none_of_ours_is_not_followed(name) -> None:
    assert not KnownSocket(_NEAR).is_new(name)


def test_a_socket_that_failed_is_tried_again_after_a_while_or_under_another_name(monkeypatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(short_way, "stopwatch_s", lambda: now_s)
    listener = KnownSocket(_NEAR)
    assert listener.is_new("tidemill-8081-a")
    listener.mark_failed()
    assert not listener.is_new("tidemill-8081-a")
    assert listener.is_new("tidemill-8081-b")
    listener.mark_failed()
    now_s += 31
    assert listener.is_new("tidemill-8081-b")


def test_a_way_that_is_closed_follows_no_name(way_to) -> None:
    listener = FakeSocket(_OK)
    way = way_to(listener.name)
    way.close()
    assert [_ask(way), _ask(way)] == [b"port", b"port"]
