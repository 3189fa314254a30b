"""Kept connections against a server that does everything wrong."""

from __future__ import annotations

import socket
import threading

import pytest

from tidemill.client.connection import ConnectionLost, Pool
from tidemill.client.endpoint import Endpoint, request_head
from tidemill.core.errors import RequestError

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Scripted:
    """A server that answers each request with the next script: pieces of bytes; None hangs up."""

    def __init__(self, *scripts: list[bytes | None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._scripts = list(scripts)
        self.requests = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._scripts:
            connection, _ = self._listener.accept()
            with connection:
                while self._scripts and connection.recv(65536):
                    self.requests += 1
                    script = self._scripts.pop(0)
                    for piece in script:
                        if piece is not None:
                            connection.sendall(piece)
                    if None in script:
                        break

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


def _ask(pool: Pool, endpoint: Endpoint, *, is_repeatable: bool = True):
    head = request_head(endpoint, "GET", "/", "", "")
    return pool.exchange(head, b"", 5.0, is_repeatable=is_repeatable)


def test_a_connection_is_kept() -> None:
    server = Scripted([_OK], [_OK])
    pool = Pool(server.endpoint, 5.0)
    assert [_ask(pool, server.endpoint).content for _ in range(2)] == [b"ok", b"ok"]
    pool.close()
    server.close()


def test_an_answer_in_pieces_and_in_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    server = Scripted([_OK[:10], _OK[10:30], _OK[30:]], [chunked[:50], chunked[50:]])
    pool = Pool(server.endpoint, 5.0)
    assert _ask(pool, server.endpoint).content == b"ok"
    assert _ask(pool, server.endpoint).content == b"abcde"
    pool.close()
    server.close()


def test_a_connection_closed_meanwhile_is_replaced() -> None:
    server = Scripted([_OK, None], [_OK])
    pool = Pool(server.endpoint, 5.0)
    assert _ask(pool, server.endpoint).content == b"ok"
    assert _ask(pool, server.endpoint).content == b"ok"
    pool.close()
    server.close()


def test_what_must_not_happen_twice_is_sent_once_whatever_became_of_it() -> None:
    server = Scripted([_OK, None], [None])  # the second is taken, and then there is no answer
    pool = Pool(server.endpoint, 5.0)
    assert _ask(pool, server.endpoint).content == b"ok"
    with pytest.raises(ConnectionLost) as lost:
        _ask(pool, server.endpoint, is_repeatable=False)
    assert lost.value.was_sent and not lost.value.is_stale
    assert server.requests == 2
    pool.close()
    server.close()


@pytest.mark.parametrize("script", [[None], [_OK[:20], None], [b"SSH-2.0\r\n\r\n", None]])
def test_a_broken_answer_is_a_lost_connection(script) -> None:
    server = Scripted(script)
    pool = Pool(server.endpoint, 5.0)
    with pytest.raises(ConnectionLost):
        _ask(pool, server.endpoint)
    pool.close()
    server.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("h:1", "h:1"), ("http://h", "h:8081"), ("https://h:9", "https://h:9"), ("[::1]:5", "[::1]:5")],
)
def test_endpoints_are_read(text, shown) -> None:
    assert str(Endpoint.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "ftp://h:1", "h:port", "http://h:1/path", ":5"])
def test_what_is_no_endpoint_is_refused(text) -> None:
    with pytest.raises(RequestError):
        Endpoint.parse(text)
