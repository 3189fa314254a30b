"""Limits the bytes of requests held at once, per call and in total.

Owns the time limits of a body; the count is a `ByteBudget` (for responses: `response_budget.py`). It stops
clients that announce large requests and send them slowly: the call over the limit is refused, the others
continue. A body that has begun must be complete in time and must arrive at a minimum rate (`BodyDeadline`,
for gRPC too); otherwise single bytes, sent now and then, would hold its share for long.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException

from tidemill.core.byte_budget import ByteBudget
from tidemill.core.limits import KIB
from tidemill.server.asgi import Event, Receive, Scope, SteadyReceive, header

# How long the body of a request may take; the largest one that is allowed needs 5 Mbit/s.
BODY_SECONDS_MAX = 120.0

# A body that has begun brings at least so many bytes within so many seconds, again and again: 1 KiB a second.
RATE_SECONDS = 10.0
RATE_BYTES = 10 * KIB

# What one piece costs besides its bytes, so that a body of single bytes is no way around the limit.
_PIECE_COST_BYTES = 128
_TOO_LATE = 408
_TOO_LARGE = 413
_TOO_MANY = 429


class BodyRefused(HTTPException):
    """A body is not taken. (An HTTPException, because the web framework lets only these through.)"""


class BodyDeadline:
    """When a body that has begun is too slow: not whole by `whole_by_s`, or `RATE_BYTES` more not by `by_s`.

    Pure.
    """

    __slots__ = ("_missing", "by_s", "whole_by_s")

    def __init__(self, now_s: float, seconds_max: float) -> None:
        self.whole_by_s = now_s + seconds_max
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._missing, self.by_s = RATE_BYTES, min(self.whole_by_s, now_s + RATE_SECONDS)

    def came(self, size: int, now_s: float) -> None:
        self._missing -= size
        if self._missing <= 0:
            self._begin(now_s)


class BodyBudget(ByteBudget):
    """Bytes of bodies that are being gathered."""

    def __init__(self, request_max: int, total_max: int, seconds_max: float = BODY_SECONDS_MAX) -> None:
        super().__init__(total_max)
        self._request_max = request_max
        self._seconds_max = seconds_max

    def require_announced(self, scope: Scope) -> None:
        """Return if the length that a request announces may be; `BodyRefused` if not, before any came."""
        length = header(scope, b"content-length")
        if length.isdigit() and int(length) > self._request_max:
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
        self._deadline: BodyDeadline | None = None  # while a body has begun and is not whole
        self._held = 0

    async def __call__(self) -> Event:
        event = await (self._receive() if self._deadline is None else self._in_time(self._deadline))
        if not event.get("more_body", False):
            self._deadline = None  # from now on one waits for the caller to go, which may take long
        elif self._deadline is None:
            self._deadline = BodyDeadline(asyncio.get_running_loop().time(), self._seconds_max)
            self._receive = SteadyReceive(self._receive)
        else:
            self._deadline.came(len(event.get("body", b"")), asyncio.get_running_loop().time())
        size = len(event.get("body", b"")) + _PIECE_COST_BYTES
        if self._held + size > self._request_max:
            raise _too_large(self._request_max)
        if not self._budget.take(size):
            raise BodyRefused(_TOO_MANY, "too many request bytes in flight; retry later")
        self._held += size
        return event

    async def _in_time(self, deadline: BodyDeadline) -> Event:
        try:
            async with asyncio.timeout_at(deadline.by_s):
                return await self._receive()
        except TimeoutError:
            slow = f"fewer than {RATE_BYTES} bytes of the body arrived in {RATE_SECONDS:g} seconds"
            if deadline.whole_by_s <= deadline.by_s:
                slow = f"the body was not complete within {self._seconds_max:g} seconds"
            raise BodyRefused(_TOO_LATE, f"{slow}; send it faster") from None

    def close(self) -> None:
        self._budget.give_back(self._held)
        self._held = 0


def _too_large(request_max: int) -> BodyRefused:
    return BodyRefused(_TOO_LARGE, f"a request has at most {request_max} bytes; split it")
