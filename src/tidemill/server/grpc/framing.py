"""gRPC over plain ASGI: length-prefixed messages in, messages and trailers out.

    offset  bytes  field of the prefix
    0       1      0 plain, 1 compressed (refused: no encoding is announced)
    1       4      length of the message, big-endian

Owns the bytes of the protocol: prefix, status in trailers, deadline from `grpc-timeout`, streams, and what
happens when the client disconnects. Independent of any service: a method is an async function from bytes to
bytes, or one that reads and writes a `Stream`.

Invariants: nothing larger than the limit is ever gathered, whatever length is announced; incomplete messages,
of requests and streams alike, are counted together and must be complete in time, or their call ends; every
call that the client still waits for ends with exactly one status.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from urllib.parse import quote

from tidemill.core.byte_budget import ByteBudget
from tidemill.server.asgi import ClientGone, Event, Receive, Scope, Send, SteadyReceive, header, steady_send
from tidemill.server.body_budget import RATE_BYTES, RATE_SECONDS, BodyDeadline

_PREFIX = struct.Struct(">BI")
_PLAIN = 0
_COMPRESSED = 1
_SMALL_PIECE_BYTES = 16_384
# How long a client may take to hand over a message that it has begun.
_BODY_SECONDS_MAX = 30.0
_TOO_LATE = (
    f"the request came too slowly: it must be complete within {_BODY_SECONDS_MAX:g} seconds and send "
    f"{RATE_BYTES} bytes in each {RATE_SECONDS:g}"
)
_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS_MAX = 8
# Printable ASCII but for the percent sign travels as it is in a status message.
_SAFE_IN_STATUS = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

_HEADERS = [(b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity")]
_START: Event = {"type": "http.response.start", "status": 200, "headers": _HEADERS, "trailers": True}
_TRAILERS_OK: Event = {
    "type": "http.response.trailers",
    "headers": [(b"grpc-status", b"0")],
    "more_trailers": False,
}


class Status(IntEnum):
    """The gRPC status codes in use here."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """A call ends with this status instead of an answer."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class MessageReader:
    """Cuts a stream of bytes into messages, wherever the bytes were split.

    Pieces are kept as they came and joined when a message is whole: a buffer that grows would be moved again
    and again, and hold twice the bytes while it is. Small pieces are joined, because each costs far more
    than its bytes.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._pieces: list[bytes] = []
        self._small_pieces = bytearray()
        self._held = 0
        self._needed = _PREFIX.size  # bytes that must be here before there is anything to do

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes."""
        self._held += len(data)
        if self._held < self._needed:
            self._keep(data)
            return []
        data = self._joined(data)
        messages: list[bytes] = []
        at = 0
        while (length := self._length_at(data, at)) is not None and len(data) - at >= 5 + length:
            messages.append(data[at + 5 : at + 5 + length])
            at += 5 + length
        self._held = len(data) - at
        self._needed = _PREFIX.size + (length or 0)
        self._keep(data[at:])
        return messages

    def _keep(self, data: bytes) -> None:
        if len(data) < _SMALL_PIECE_BYTES:
            self._small_pieces += data
            if len(self._small_pieces) < _SMALL_PIECE_BYTES:
                return
            data = b""
        self._pieces += [bytes(self._small_pieces), data]
        self._small_pieces.clear()

    def _joined(self, data: bytes) -> bytes:
        if not self._pieces and not self._small_pieces:
            return data
        joined = b"".join((*self._pieces, self._small_pieces, data))
        self._pieces.clear()
        self._small_pieces.clear()
        return joined

    def _length_at(self, data: bytes, at: int) -> int | None:
        if len(data) - at < _PREFIX.size:
            return None
        flag, length = _PREFIX.unpack_from(data, at)
        if flag == _COMPRESSED:
            raise GrpcError(Status.UNIMPLEMENTED, "compressed messages are refused; send them uncompressed")
        if flag != _PLAIN:
            raise GrpcError(Status.INTERNAL, f"not a gRPC message: its first byte is {flag}")
        if length > self._message_bytes_max:
            raise GrpcError(
                Status.RESOURCE_EXHAUSTED,
                f"a message of {length} bytes is too large, the limit is {self._message_bytes_max}",
            )
        return int(length)

    def finish(self) -> None:
        """The stream has ended: nothing may be left over."""
        if self._held:
            raise GrpcError(Status.INTERNAL, "the request ended in the middle of a message")


def frame(message: bytes) -> bytes:
    """A message with its prefix."""
    return _PREFIX.pack(_PLAIN, len(message)) + message


def parse_timeout_s(value: bytes) -> float:
    """Seconds from a `grpc-timeout` header."""
    digits, unit = value[:-1], value[-1:]
    if not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX or unit not in _TIMEOUT_UNITS:
        raise GrpcError(Status.INVALID_ARGUMENT, f"grpc-timeout {value[:20]!r} is not one")
    return int(digits) * _TIMEOUT_UNITS[unit]


def status_headers(status: Status, message: str) -> list[tuple[bytes, bytes]]:
    """Trailers with the status of a call."""
    headers = [(b"grpc-status", str(int(status)).encode())]
    if message:
        headers.append((b"grpc-message", quote(message, safe=_SAFE_IN_STATUS).encode()))
    return headers


class Call:
    """A call's data besides its messages. Headers are parsed lazily."""

    __slots__ = ("_arrived_s", "_scope", "request_bytes")

    def __init__(self, scope: Scope, request_bytes: int = 0) -> None:
        self._scope = scope
        self._arrived_s = asyncio.get_running_loop().time()
        self.request_bytes = request_bytes  # of a unary call

    def header(self, name: bytes) -> str:
        return str(header(self._scope, name), "utf-8", "replace")

    def deadline_s(self) -> float | None:
        """When the client stops waiting, on the event loop's clock."""
        timeout = header(self._scope, b"grpc-timeout")
        return self._arrived_s + parse_timeout_s(timeout) if timeout else None

    def left_s(self) -> float | None:
        """Seconds until the deadline, if there is one."""
        deadline_s = self.deadline_s()
        return None if deadline_s is None else deadline_s - asyncio.get_running_loop().time()


class Stream:
    """Both directions of a streaming call. Reads and writes may run in different tasks."""

    def __init__(
        self, receive: Receive, send: Send, message_bytes_max: int, budget: ByteBudget | None = None
    ) -> None:
        self._receive = receive
        self._send = send
        self._reader = MessageReader(message_bytes_max)
        self._budget = ByteBudget(message_bytes_max) if budget is None else budget
        self._counted = 0  # what the budget holds for this stream
        self._deadline: BodyDeadline | None = None  # while a message has begun and is not whole
        self._messages: deque[bytes] = deque()
        self._has_ended = False
        self._has_started = False

    async def read(self) -> bytes | None:
        """The client's next message, None when it will send no more."""
        while not self._messages and not self._has_ended:
            event = await self._receive_in_time()
            if event["type"] == "http.disconnect":
                raise ClientGone
            self._take(event.get("body", b""))
            if not event.get("more_body", False):
                self._has_ended = True
                self._reader.finish()
        return self._messages.popleft() if self._messages else None

    async def _receive_in_time(self) -> Event:
        try:
            async with asyncio.timeout_at(None if self._deadline is None else self._deadline.by_s):
                return await self._receive()
        except TimeoutError:
            raise GrpcError(Status.DEADLINE_EXCEEDED, _TOO_LATE) from None

    def _take(self, data: bytes) -> None:
        self._counted += _reserve(len(data), self._budget)
        found = self._reader.feed(data)
        self._messages.extend(found)
        self._budget.give_back(self._counted - self._reader.held)
        self._counted = self._reader.held
        now_s = asyncio.get_running_loop().time()
        if not self._counted:
            self._deadline = None
        elif found or self._deadline is None:
            self._deadline = BodyDeadline(now_s, _BODY_SECONDS_MAX)
        else:
            self._deadline.came(len(data), now_s)

    def close(self) -> None:
        """Nothing more is read; what was read in part is no longer counted."""
        self._budget.give_back(self._counted)
        self._counted = 0

    async def start(self) -> None:
        """Begin the response. Some servers hold its headers back until there is a piece of the body."""
        if not self._has_started:
            self._has_started = True
            await self._send(_START)

    async def write(self, messages: Iterable[bytes]) -> None:
        """Send messages, all in one piece of the body."""
        await self.start()
        body = b"".join(map(frame, messages))
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def probe(self) -> None:
        """Raise if the client has disconnected, by sending an empty piece of the body."""
        await self.start()
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def end(self, status: Status, message: str) -> None:
        await self.start()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        await self._send(
            {
                "type": "http.response.trailers",
                "headers": status_headers(status, message),
                "more_trailers": False,
            }
        )


Unary = Callable[[bytes, Call], Awaitable[bytes]]
Streaming = Callable[[Stream, Call], Awaitable[None]]


class GrpcService:
    """An ASGI application for the methods of one service."""

    def __init__(
        self,
        unary: Mapping[str, Unary],
        streaming: Mapping[str, Streaming],
        message_bytes_max: int,
        stream_message_bytes_max: int | None = None,
    ) -> None:
        self._gathered = ByteBudget(message_bytes_max * 3 // 2)  # of all messages that are not whole yet
        self._unary = unary
        self._streaming = streaming
        self._message_bytes_max = message_bytes_max
        self._stream_message_bytes_max = stream_message_bytes_max or message_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            if path in self._unary:
                await self._answer(self._unary[path], scope, receive, send)
            else:
                await self._converse(path, scope, receive, send)
        except OSError:
            return  # servers report a disconnected client by an OSError from `send`

    async def _answer(self, method: Unary, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a unary call.

        It is not cut off at its deadline: what it does to the broker cannot be undone by then, and the
        client counts for itself."""
        try:
            event = await receive()
            body = event.get("body", b"")
            if event.get("more_body", False) or not _is_one_message(body, self._message_bytes_max):
                request = await self._gather(event, receive)
            else:
                request = body[_PREFIX.size :]
            response = await method(request, Call(scope, len(request)))
        except GrpcError as error:
            await Stream(receive, send, 0).end(error.status, error.message)
            return
        except TimeoutError:
            await Stream(receive, send, 0).end(Status.DEADLINE_EXCEEDED, _TOO_LATE)
            return
        await send(_START)
        await send({"type": "http.response.body", "body": frame(response), "more_body": False})
        await send(_TRAILERS_OK)

    async def _gather(self, event: Event, receive: Receive) -> bytes:
        """The one message of a request that came in pieces, or the error that it is."""
        reader = MessageReader(self._message_bytes_max)
        receive = SteadyReceive(receive)
        held = 0
        now_s = asyncio.get_running_loop().time
        deadline = BodyDeadline(now_s(), _BODY_SECONDS_MAX)
        try:
            async with asyncio.timeout_at(deadline.by_s) as limit:
                while True:
                    if event["type"] == "http.disconnect":
                        raise ClientGone
                    held += _reserve(len(event.get("body", b"")), self._gathered)
                    deadline.came(len(event.get("body", b"")), now_s())
                    limit.reschedule(deadline.by_s)
                    found = reader.feed(event.get("body", b""))
                    if found or not event.get("more_body", False):
                        break
                    event = await receive()
        finally:
            self._gathered.give_back(held)
        # A request that continues after its message is invalid, but this does not wait to find out.
        reader.finish()
        if len(found) != 1:
            raise GrpcError(Status.INTERNAL, f"the method takes one message, {len(found)} came")
        return found[0]

    async def _converse(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        stream = Stream(
            SteadyReceive(receive), steady_send(send), self._stream_message_bytes_max, self._gathered
        )
        status, message = Status.OK, ""
        try:
            method = self._streaming.get(path)
            if method is None:
                raise GrpcError(Status.UNIMPLEMENTED, f"there is no method {path}")
            call = Call(scope)
            async with asyncio.timeout_at(call.deadline_s()):
                await method(stream, call)
        except GrpcError as error:
            status, message = error.status, error.message
        except TimeoutError:
            status, message = Status.DEADLINE_EXCEEDED, "the deadline has passed"
        finally:
            stream.close()
        await stream.end(status, message)


def _reserve(size: int, gathered: ByteBudget) -> int:
    """Count bytes that are being gathered; refused where all callers together send too much at once."""
    if not gathered.take(size):
        raise GrpcError(Status.RESOURCE_EXHAUSTED, "too many request bytes in flight; retry later")
    return size


def _is_one_message(body: bytes, message_bytes_max: int) -> bool:
    """The common case: the body is one plain message, whole."""
    size = len(body) - _PREFIX.size
    return 0 <= size <= message_bytes_max and _PREFIX.unpack_from(body) == (_PLAIN, size)
