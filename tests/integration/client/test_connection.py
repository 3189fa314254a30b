"""Kept connections against a server that does everything wrong."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading

import pytest

import tidemill
from tidemill.client.arguments import can_come_back
from tidemill.client.transport.connection import ConnectionLostError, Pool, connect
from tidemill.client.transport.endpoint import Endpoint, request_head
from tidemill.core.errors import RequestError, UnreachableError

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
    pool = Pool(lambda: connect(server.endpoint, 5.0))
    assert [_ask(pool, server.endpoint).content for _ in range(2)] == [b"ok", b"ok"]
    pool.close()
    server.close()


def test_an_answer_in_pieces_and_in_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    server = Scripted([_OK[:10], _OK[10:30], _OK[30:]], [chunked[:50], chunked[50:]])
    pool = Pool(lambda: connect(server.endpoint, 5.0))
    assert _ask(pool, server.endpoint).content == b"ok"
    assert _ask(pool, server.endpoint).content == b"abcde"
    pool.close()
    server.close()


def test_a_connection_closed_meanwhile_is_replaced() -> None:
    server = Scripted([_OK, None], [_OK])
    pool = Pool(lambda: connect(server.endpoint, 5.0))
    assert _ask(pool, server.endpoint).content == b"ok"
    assert _ask(pool, server.endpoint).content == b"ok"
    pool.close()
    server.close()


def test_what_must_not_happen_twice_is_sent_once_whatever_became_of_it() -> None:
    server = Scripted([_OK, None], [None])  # the second is taken, and then there is no answer
    pool = Pool(lambda: connect(server.endpoint, 5.0))
    assert _ask(pool, server.endpoint).content == b"ok"
    with pytest.raises(ConnectionLostError) as lost:
        _ask(pool, server.endpoint, is_repeatable=False)
    assert lost.value.was_sent and not lost.value.is_stale
    assert server.requests == 2
    pool.close()
    server.close()


@pytest.mark.parametrize("script", [[None], [_OK[:20], None], [b"SSH-2.0\r\n\r\n", None]])
def test_a_broken_answer_is_a_lost_connection(script) -> None:
    server = Scripted(script)
    pool = Pool(lambda: connect(server.endpoint, 5.0))
    with pytest.raises(ConnectionLostError):
        _ask(pool, server.endpoint)
    pool.close()
    server.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_port_without_tls_is_reported_at_once_and_not_tried_again(is_async) -> None:
    server = Scripted([b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
    endpoint = f"https://{server.endpoint}"

    async def ask() -> None:
        async with tidemill.AsyncClient(endpoint, retry_for="1h") as client:
            await client.status()

    with (
        tidemill.Client(endpoint, retry_for="1h") as client,
        pytest.raises(UnreachableError, match="tls-port"),
    ):
        asyncio.run(ask()) if is_async else client.status()
    assert server.requests == 1
    server.close()


@pytest.mark.parametrize("cause", [ssl.SSLCertVerificationError(), OSError(), ssl.SSLEOFError(), None])
def test_only_what_stays_so_is_not_tried_again(cause) -> None:
    lost = ConnectionLostError("lost", is_stale=False)
    lost.__cause__ = cause
    assert can_come_back(lost) is not isinstance(cause, ssl.SSLCertVerificationError)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("h:1", "h:1"), ("http://h", "h:8081"), ("https://h:9", "https://h:9"), ("[::1]:5", "[::1]:5")],
)
def test_endpoints_are_read(text, shown) -> None:
    assert str(Endpoint.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "ftp://h:1", "h:port", "http://h:1/path", ":5", "h:0", None, 8081])
def test_what_is_no_endpoint_is_refused(text) -> None:
    with pytest.raises(RequestError):
        Endpoint.parse(text)


def test_a_server_that_does_not_answer_is_not_waited_for_longer_than_was_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        pool = Pool(lambda: connect(endpoint, 5.0))
        with pytest.raises(ConnectionLostError, match=r"no answer within 0\.05 s") as caught:
            pool.exchange(request_head(endpoint, "GET", "/", "", ""), b"", 0.05, is_repeatable=True)
        assert (caught.value.was_slow, caught.value.is_stale, caught.value.was_sent) == (True, False, True)
        pool.close()


def test_a_server_that_does_not_read_is_not_waited_for_either() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        pool = Pool(lambda: connect(endpoint, 5.0))
        with pytest.raises(ConnectionLostError, match="no answer within"):
            pool.exchange(
                request_head(endpoint, "POST", "/", "", ""), bytes(64 << 20), 0.05, is_repeatable=True
            )
        pool.close()


def test_signals_do_not_make_the_main_thread_wait_longer() -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
            pool = Pool(lambda: connect(endpoint, 5.0))
            with pytest.raises(ConnectionLostError, match="no answer within"):
                pool.exchange(request_head(endpoint, "GET", "/", "", ""), b"", 0.1, is_repeatable=True)
            pool.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_thread_waits_no_longer_than_was_said_either() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        pool, lost = Pool(lambda: connect(endpoint, 5.0)), []

        def ask() -> None:
            try:
                pool.exchange(request_head(endpoint, "GET", "/", "", ""), b"", 0.05, is_repeatable=True)
            except ConnectionLostError as error:
                lost.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(60)
        assert [(error.was_slow, str(error)) for error in lost] == [(True, "no answer within 0.05 s")]
        pool.close()
