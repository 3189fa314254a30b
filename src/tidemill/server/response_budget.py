"""Limits the bytes of responses that wait for slow readers, and the number of large ones made at once.

Owns both counts. It stops clients that request much and never read it: the call over the limit is refused,
the others continue. Concurrent calls may all pass the first check, so each reserves again when it knows its
size, and holds the reservation until its client has read the last byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from tidemill.core.byte_budget import ByteBudget
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.limits import KIB
from tidemill.server.asgi import Event, Send, header
from tidemill.server.http.http_errors import error_response

# Answers with bodies that are made at once; while one is made it is in memory up to four times.
_LOOKS_MAX = 4

_OF_CALL: ContextVar[Answer | None] = ContextVar("answer", default=None)  # the answer of the call under way
_PIECE_BYTES = 256 * KIB  # what has no more is not large
_START = "http.response.start"


class Unread(ByteBudget):
    """Bytes of answers that their callers have not taken yet. Thread-safe but for `looks`."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.looks = asyncio.Semaphore(_LOOKS_MAX)  # of the one event loop that makes answers

    def require_capacity(self) -> None:
        """Return if another large response fits the budget; `TooManyRequestsError` if not."""
        if self.held > self.bytes_max:
            raise self.refusal()

    def answer(self, send: Send, *, may_refuse: bool = False) -> Answer:
        """A `send` for the answer of the call under way, counted. Use it as a context."""
        return Answer(self, send, may_refuse)

    def refusal(self) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"{self.held} response bytes wait for clients that do not read; retry later"
        )


class Answer:
    """One call's `send`. With `may_refuse`, a large response over the budget becomes a refusal.

    Not so where something was done that the client must learn: there bytes are reserved before it is done.
    """

    def __init__(self, unread: Unread, send: Send, may_refuse: bool) -> None:
        self.unread = unread
        self._send = send
        self._may_refuse = may_refuse
        self._is_refused = False
        self._kept = 0

    def __enter__(self) -> Answer:
        self._before = _OF_CALL.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OF_CALL.reset(self._before)
        self.unread.give_back(self._kept)
        self._kept = 0

    def keep(self, size: int, *, is_certain: bool = False) -> None:
        """Reserve at least so many bytes until the response has been read."""
        if size > self._kept:
            if not self.unread.take(size, instead_of=self._kept, is_certain=is_certain):
                raise self.unread.refusal()
            self._kept = size

    async def __call__(self, event: Event) -> None:
        if self._is_refused:
            return
        if self._may_refuse and event["type"] == _START and (size := _announced(event)) > _PIECE_BYTES:
            try:
                self.keep(size)
            except TooManyRequestsError as error:
                self._is_refused = True
                await error_response(error)({"type": "http"}, _disconnected, self._send)
                return
        body = event.get("body", b"")
        self.keep(len(body), is_certain=True)
        await self._in_pieces(event, body)

    async def _in_pieces(self, event: Event, body: bytes) -> None:
        """The server waits for the caller between two pieces, but takes the first whole, however large."""
        size = len(body)
        if size > _PIECE_BYTES:
            for start in range(0, size - _PIECE_BYTES, _PIECE_BYTES):
                piece = body[start : start + _PIECE_BYTES]
                await self._send({"type": event["type"], "body": piece, "more_body": True})
            event = {**event, "body": body[(size - 1) // _PIECE_BYTES * _PIECE_BYTES :]}
        await self._send(event)


class BodiesRoute(APIRoute):
    """A route whose answers carry bodies of messages: only so many of them are made at once."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        make = super().get_route_handler()

        async def in_turn(request: Request) -> Response:
            answer = _OF_CALL.get()
            if answer is None:
                return await make(request)
            async with answer.unread.looks:
                answer.unread.require_capacity()
                return await make(request)

        return in_turn


def reserve(bodies: Iterable[bytes]) -> None:
    """Reserve bytes for these; `TooManyRequestsError` if unread responses leave too few."""
    answer = _OF_CALL.get()
    if answer is not None:
        answer.keep(sum(map(len, bodies)))


def _announced(event: Event) -> int:
    """How many bytes the answer that begins will have; 0 if it does not say."""
    return int(header(event, b"content-length") or 0)


async def _disconnected() -> Event:
    return {"type": "http.disconnect"}
