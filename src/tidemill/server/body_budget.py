"""How many bytes of requests and answers may be held at once, in one call and in all of them together.

Owns the counts. Whoever announces much and sends it slowly, a thousand times over, is stopped here, and so is
whoever asks for much and never reads it: the call over the limit is refused, those under way go on. A body
that has begun must be whole in time, or single bytes, sent now and then, would hold its place for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

from starlette.exceptions import HTTPException

from tidemill.core.errors import TooManyRequests
from tidemill.core.limits import KIB
from tidemill.core.model import Delivery
from tidemill.server.asgi import Event, Receive, Scope, Send, SteadyReceive

# Takes of messages under way at once, of each door: their bodies are in memory before anybody counts them.
TAKES_MAX = 8
# How long the body of a request may take; the largest one that is allowed needs 5 Mbit/s.
BODY_SECONDS_MAX = 120.0

_OF_CALL: ContextVar[Unread | None] = ContextVar("unread", default=None)  # what counts a call's answer
_PIECE_BYTES = 256 * KIB
# What one piece costs besides its bytes, so that a body of single bytes is no way around the limit.
_PIECE_COST_BYTES = 128
_TOO_LATE = 408
_TOO_LARGE = 413
_TOO_MANY = 429


class BodyRefused(HTTPException):
    """A body is not taken. (An HTTPException, because the web framework lets only these through.)"""


class Budget:
    """Bytes that may be held at once. Lives on one event loop."""

    def __init__(self, total_max: int) -> None:
        self._total_max = total_max
        self.held = 0

    def take(self, size: int) -> bool:
        """Count bytes in; False if there is no room for them. The first ones are always taken."""
        if not self.has_room(size):
            return False
        self.held += size
        return True

    def has_room(self, size: int) -> bool:
        return not self.held or self.held + size <= self._total_max

    def give_back(self, size: int) -> None:
        self.held -= size


class BodyBudget(Budget):
    """Bytes of bodies that are being gathered."""

    def __init__(self, request_max: int, total_max: int, seconds_max: float = BODY_SECONDS_MAX) -> None:
        super().__init__(total_max)
        self._request_max = request_max
        self._seconds_max = seconds_max

    def require_announced(self, scope: Scope) -> None:
        """Return if the length that a request announces may be; `BodyRefused` if not, before any came."""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._request_max:
                raise _too_large(self._request_max)

    def watch(self, receive: Receive) -> WatchedBody:
        return WatchedBody(receive, self, self._request_max, self._seconds_max)


class WatchedBody:
    """A `receive` that counts, and refuses what is too much. Close it when the request is over."""

    def __init__(self, receive: Receive, budget: BodyBudget, request_max: int, seconds_max: float) -> None:
        self._receive = receive
        self._budget = budget
        self._request_max = request_max
        self._seconds_max = seconds_max
        self._deadline: float | None = None  # while a body has begun and is not whole
        self._held = 0

    async def __call__(self) -> Event:
        event = await (self._receive() if self._deadline is None else self._in_time(self._deadline))
        if not event.get("more_body", False):
            self._deadline = None  # from now on one waits for the caller to go, which may take long
        elif self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._seconds_max
            self._receive = SteadyReceive(self._receive)
        size = len(event.get("body", b"")) + _PIECE_COST_BYTES
        if self._held + size > self._request_max:
            raise _too_large(self._request_max)
        if not self._budget.take(size):
            raise BodyRefused(_TOO_MANY, "too many bytes are being received; send again shortly")
        self._held += size
        return event

    async def _in_time(self, deadline: float) -> Event:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._receive()
        except TimeoutError:
            raise BodyRefused(
                _TOO_LATE, f"the body was not whole within {self._seconds_max:g} seconds; send it faster"
            ) from None

    def close(self) -> None:
        self._budget.give_back(self._held)
        self._held = 0


def _too_large(request_max: int) -> BodyRefused:
    return BodyRefused(_TOO_LARGE, f"a request has at most {request_max} bytes; split it")


def require_room_for(deliveries: Sequence[Delivery]) -> None:
    """`TooManyRequests` if the answer with these would be too much beside those that nobody reads.

    Calls that begin together find room for all of them; each must look again when it has its messages.
    """
    unread = _OF_CALL.get()
    if unread is not None and unread.held:
        unread.require_room(sum(len(delivery.message.body) for delivery in deliveries))


class Unread:
    """Bytes of answers that their callers have not taken yet. Lives on one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held = 0

    def require_room(self, size: int = 0) -> None:
        """Return if there is room for another large answer; `TooManyRequests` if not."""
        if self.held and self.held + size > self._bytes_max:
            raise TooManyRequests(
                f"{self.held} bytes of answers wait for callers that do not read them; ask again shortly"
            )

    def count(self, send: Send) -> Send:
        """The same `send`, counted while it waits for the caller to read.

        In pieces: the server waits for the caller between two, but takes the first whole, however large.
        """
        _OF_CALL.set(self)

        async def counted(event: Event) -> None:
            body = event.get("body", b"")
            size = len(body)
            self.held += size
            try:
                if size > _PIECE_BYTES:
                    for start in range(0, size - _PIECE_BYTES, _PIECE_BYTES):
                        piece = body[start : start + _PIECE_BYTES]
                        await send({"type": event["type"], "body": piece, "more_body": True})
                    event = {**event, "body": body[(size - 1) // _PIECE_BYTES * _PIECE_BYTES :]}
                await send(event)
            finally:
                self.held -= size

        return counted
