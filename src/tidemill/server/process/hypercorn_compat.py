"""Adapts hypercorn where it differs from what the application relies on.

- A `send` to a client that has disconnected raises `OSError`, as ASGI requires since 2.4; hypercorn drops the
  data. A receive that did not notice would lease messages to a disconnected client.
- Bytes of a request that was answered before it was complete are dropped; hypercorn would close the
  connection, with every other call on it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hypercorn.protocol
from hypercorn.protocol.h2 import H2Protocol

from tidemill.server.app import Application
from tidemill.server.asgi import Event, Receive, Scope, Send


class _Caller:
    """`receive` and `send` of one request, which know when the client has gone."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._coming: asyncio.Future[Event] | None = None  # a `receive` that has begun
        self._is_awaited = False  # by a task of the application, which then has it
        self._end: Event | None = None  # the end of the body, taken to see what follows it

    async def receive(self) -> Event:
        if self._end is not None:
            event, self._end = self._end, None
            return event
        self._is_awaited = True
        try:
            event = await asyncio.shield(self._begun())
        finally:
            self._is_awaited = False
        self._coming = None
        return event

    async def send(self, event: Event) -> None:
        # Only where more follows: what ends an answer is the same whether it is read or not.
        if event.get("more_body") and await self._has_gone():
            raise ConnectionResetError("the client has gone")
        await self._send(event)

    async def _has_gone(self) -> bool:
        """Whether the client is known to have gone; takes no part of a body, only its end."""
        while self._begun().done() or await _soon(self._begun()):
            event = self._begun().result()
            if event["type"] == "http.disconnect":
                return True
            if self._is_awaited or event.get("more_body") or event.get("body"):
                return False
            self._end, self._coming = event, None
        return False

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()

    def _begun(self) -> asyncio.Future[Event]:
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._receive())
        return self._coming


async def _soon(coming: asyncio.Future[Event]) -> bool:
    """Whether it is done, after a turn of the loop to take what is there already."""
    await asyncio.sleep(0)
    return coming.done()


def watching_departures(application: Application) -> Application:
    """The application with a `send` that raises when its client has gone."""

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        caller = _Caller(receive, send)
        try:
            await application(scope, caller.receive, caller.send)
        finally:
            caller.close()

    return watched


class _Answered:
    """A stream whose answer is complete."""

    async def handle(self, event: object) -> None:
        """Drop what comes for it."""


class _Streams(dict[int, Any]):
    def __missing__(self, stream_id: int) -> _Answered:
        return _Answered()


class _H2Protocol(H2Protocol):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.streams = _Streams()


def drop_what_comes_late() -> None:
    """Have hypercorn drop the rest of a request that is answered already."""
    vars(hypercorn.protocol)["H2Protocol"] = _H2Protocol
