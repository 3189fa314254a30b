"""The gRPC framing against bytes of every shape, and against clients that come, stay silent, or go away."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import simulated_loop
from tidemill.server.grpc import framing as grpc_framing
from tidemill.server.grpc.framing import (
    Call,
    ClientGone,
    GrpcError,
    GrpcService,
    MessageReader,
    Status,
    Stream,
    frame,
    parse_timeout_s,
    status_headers,
)

_LIMIT = 1000
_MESSAGES = st.lists(st.binary(max_size=50), max_size=6)


def _split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(_MESSAGES, st.lists(st.integers(0, 400)))
def test_messages_survive_any_split(messages: list[bytes], cuts: list[int]) -> None:
    reader = MessageReader(_LIMIT)
    found = [m for piece in _split(b"".join(map(frame, messages)), cuts) for m in reader.feed(piece)]
    reader.finish()
    assert found == messages


@given(st.binary(min_size=1, max_size=60), st.integers(1, 64))
def test_a_truncated_message_is_an_error_at_the_end(message: bytes, missing: int) -> None:
    reader = MessageReader(_LIMIT)
    data = frame(message)
    assert reader.feed(data[: -min(missing, len(data) - 1)]) == []
    with pytest.raises(GrpcError) as caught:
        reader.finish()
    assert caught.value.status is Status.INTERNAL


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_garbage_ends_in_messages_or_a_status_and_gathers_nothing(data: bytes, cuts: list[int]) -> None:
    reader = MessageReader(_LIMIT)
    with contextlib.suppress(GrpcError):
        for piece in _split(data, cuts):
            assert all(len(message) <= _LIMIT for message in reader.feed(piece))


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (struct.pack(">BI", 0, 1 << 30), Status.RESOURCE_EXHAUSTED),
        (struct.pack(">BI", 0, _LIMIT + 1), Status.RESOURCE_EXHAUSTED),
        (struct.pack(">BI", 1, 5), Status.UNIMPLEMENTED),
        (struct.pack(">BI", 7, 5), Status.INTERNAL),
    ],
)
def test_a_bad_prefix_is_refused_before_any_of_its_message_comes(prefix: bytes, status: Status) -> None:
    with pytest.raises(GrpcError) as caught:
        MessageReader(_LIMIT).feed(prefix)
    assert caught.value.status is status


def test_timeouts() -> None:
    assert parse_timeout_s(b"3S") == 3
    assert parse_timeout_s(b"250m") == 0.25
    assert parse_timeout_s(b"1H") == 3600
    for bad in (b"", b"S", b"3", b"-1S", b"3s", b"123456789S", b"1.5S"):
        with pytest.raises(GrpcError):
            parse_timeout_s(bad)


@given(st.text())
def test_a_status_message_survives_its_way(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    headers = dict(status_headers(Status.INTERNAL, text))
    value = headers.get(b"grpc-message", b"")
    assert all(0x20 <= byte < 0x7F for byte in value)
    assert unquote(value.decode()) == text


# -- calls ----------------------------------------------------------------------------------------


class _Client:
    """The other side of an ASGI application."""

    def __init__(self, pieces: list[bytes], *, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.scope: dict[str, Any] = {"type": "http", "path": "/echo", "headers": headers or []}
        self._events = [
            {"type": "http.request", "body": piece, "more_body": index + 1 < len(pieces)}
            for index, piece in enumerate(pieces)
        ]
        self.is_gone = False
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        return self._events.pop(0) if self._events else {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        if self.is_gone:
            raise OSError("the client has gone")
        self.sent.append(event)

    def messages(self) -> list[bytes]:
        reader = MessageReader(_LIMIT)
        return [m for e in self.sent if e["type"] == "http.response.body" for m in reader.feed(e["body"])]

    def status(self) -> Status:
        (trailers,) = [e for e in self.sent if e["type"] == "http.response.trailers"]
        return Status(int(dict(trailers["headers"])[b"grpc-status"]))

    def run(self, application: Callable[..., Coroutine[Any, Any, None]]) -> _Client:
        asyncio.run(application(self.scope, self.receive, self.send))
        return self


async def _echo(request: bytes, _: Call) -> bytes:
    return request


async def _echo_all(stream: Stream, _: Call) -> None:
    while (message := await stream.read()) is not None:
        await stream.write([message, message])


_SERVICE = GrpcService({"/echo": _echo}, {"/twice": _echo_all}, _LIMIT)


@given(st.binary(max_size=100), st.lists(st.integers(0, 120), max_size=4))
def test_a_unary_call(message: bytes, cuts: list[int]) -> None:
    client = _Client(_split(frame(message), cuts)).run(_SERVICE)
    assert client.messages() == [message]
    assert client.status() is Status.OK


@given(_MESSAGES, st.lists(st.integers(0, 300), max_size=4))
def test_a_streaming_call(messages: list[bytes], cuts: list[int]) -> None:
    client = _Client(_split(b"".join(map(frame, messages)), cuts))
    client.scope["path"] = "/twice"
    client.run(_SERVICE)
    assert client.messages() == [m for message in messages for m in (message, message)]
    assert client.status() is Status.OK


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", Status.INTERNAL),
        (b"\x00\x00\x00\x00\x05abc", Status.INTERNAL),
        (frame(b"a") + frame(b"b"), Status.INTERNAL),
        (b"\x01\x00\x00\x00\x01a", Status.UNIMPLEMENTED),
        (b"\x00\x40\x00\x00\x00", Status.RESOURCE_EXHAUSTED),
        (b"GET / HTTP/1.1", Status.INTERNAL),
    ],
)
def test_a_bad_unary_request_gets_a_status(body: bytes, status: Status) -> None:
    client = _Client([body]).run(_SERVICE)
    assert client.status() is status
    assert client.messages() == []


def test_an_unknown_method_is_unimplemented() -> None:
    client = _Client([frame(b"")])
    client.scope["path"] = "/nothing"
    assert client.run(_SERVICE).status() is Status.UNIMPLEMENTED


def test_a_stream_ends_at_its_deadline() -> None:
    async def wait(stream: Stream, call: Call) -> None:
        await stream.start()
        left_s = call.left_s()
        assert left_s is not None and left_s <= 0.02
        await asyncio.Event().wait()

    client = _Client([frame(b"")], headers=[(b"grpc-timeout", b"20m")])
    client.run(GrpcService({}, {"/echo": wait}, _LIMIT))
    assert client.status() is Status.DEADLINE_EXCEEDED


def test_a_bad_timeout_is_refused() -> None:
    client = _Client([frame(b"")], headers=[(b"grpc-timeout", b"soon")])
    client.scope["path"] = "/twice"
    assert client.run(_SERVICE).status() is Status.INVALID_ARGUMENT


def test_a_client_that_goes_away_ends_the_call_in_silence() -> None:
    ended: list[str] = []

    async def read_on(stream: Stream, _: Call) -> None:
        try:
            while await stream.read() is not None:
                pass
        except ClientGone:
            ended.append("gone")
            raise

    client = _Client([frame(b"a"), b"half"])
    client._events[-1]["more_body"] = True
    client.run(GrpcService({}, {"/echo": read_on}, _LIMIT))
    assert ended == ["gone"]
    assert client.sent == []


def test_a_probe_tells_that_the_client_has_gone() -> None:
    async def probe(stream: Stream, _: Call) -> None:
        await stream.probe()
        client.is_gone = True
        with pytest.raises(OSError, match="gone"):
            await stream.probe()

    client = _Client([frame(b"a")])
    client.run(GrpcService({}, {"/echo": probe}, _LIMIT))
    assert client.messages() == []


def test_a_message_of_a_stream_has_a_limit_of_its_own() -> None:
    client = _Client([struct.pack(">BI", 0, 101)])
    client.scope["path"] = "/twice"
    client.run(GrpcService({}, {"/twice": _echo_all}, _LIMIT, 100))
    assert client.status() is Status.RESOURCE_EXHAUSTED


class _Stalling(_Client):
    """Sends a part of a message on a stream, and then nothing until it goes."""

    def __init__(self, size: int) -> None:
        super().__init__([struct.pack(">BI", 0, _LIMIT) + b"x" * (size - 5), b""])
        self._events.pop()
        self.scope["path"] = "/twice"
        self.leaves = asyncio.Event()

    async def receive(self) -> Any:
        if not self._events:
            await self.leaves.wait()
        return await super().receive()


async def _until_they_wait() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_streams_that_begin_much_and_finish_nothing_are_bounded_together() -> None:
    async def run() -> None:
        service = GrpcService({"/echo": _echo}, {"/twice": _echo_all}, _LIMIT)
        clients = [_Stalling(500) for _ in range(4)]
        calls = [asyncio.create_task(service(c.scope, c.receive, c.send)) for c in clients]
        await _until_they_wait()
        # Three times 500 is all that may be held; requests that come in pieces are counted with them.
        assert [call.done() for call in calls] == [False, False, False, True]
        assert clients[3].status() is Status.RESOURCE_EXHAUSTED
        request = _Client(_split(frame(b"a request"), [3]))
        await service(request.scope, request.receive, request.send)
        assert request.status() is Status.RESOURCE_EXHAUSTED
        for client in clients:
            client.leaves.set()
        await asyncio.gather(*calls)
        request = _Client(_split(frame(b"a request"), [3]))
        await service(request.scope, request.receive, request.send)
        assert request.messages() == [b"a request"]

    asyncio.run(run())


def test_messages_that_are_whole_are_not_counted() -> None:
    pieces = [piece for _ in range(20) for piece in _split(frame(b"x" * 900), [300])]
    client = _Client(pieces)
    client.scope["path"] = "/twice"
    assert client.run(_SERVICE).status() is Status.OK
    assert len(client.messages()) == 40


class _Slow(_Client):
    """Sends a request piece by piece, with a pause before each."""

    def __init__(self, path: str, size: int, piece: int, every_s: float) -> None:
        data = frame(b"x" * size)
        super().__init__([data[at : at + piece] for at in range(0, len(data), piece)])
        self.scope["path"] = path
        self._every_s = every_s

    async def receive(self) -> Any:
        await asyncio.sleep(self._every_s)
        return await super().receive()


@pytest.mark.parametrize("path", ["/echo", "/twice"])
@pytest.mark.parametrize(
    ("size", "piece", "every_s", "ends_s"),
    [(900, 1, 1, 11), (900, 40, 1, 11), (900, 100, 1, None), (50_000, 2_000, 1, None), (50_000, 900, 1, 11)],
)
def test_a_message_comes_at_a_minimum_rate(
    path: str, size: int, piece: int, every_s: float, ends_s: float | None
) -> None:
    async def run() -> tuple[Status, float]:
        service = GrpcService({"/echo": _echo}, {"/twice": _echo_all}, 100_000)
        client = _Slow(path, size, piece, every_s)
        await service(client.scope, client.receive, client.send)
        return client.status(), asyncio.get_running_loop().time()

    status, at_s = simulated_loop.run(run())
    assert status is (Status.OK if ends_s is None else Status.DEADLINE_EXCEEDED)
    assert ends_s is None or at_s == pytest.approx(ends_s)


def test_a_message_of_a_stream_that_has_begun_must_be_whole_in_time(monkeypatch) -> None:
    async def run() -> Status:
        client = _Stalling(500)
        await _SERVICE(client.scope, client.receive, client.send)
        return client.status()

    monkeypatch.setattr(grpc_framing, "_BODY_SECONDS_MAX", 0)
    assert asyncio.run(run()) is Status.DEADLINE_EXCEEDED
