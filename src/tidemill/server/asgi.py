"""The types of ASGI, whole answers, and a `receive` and `send` that may be cancelled.

The server resolves the future that such a call waits for even after the call was cancelled. Cancelled with
its caller, that future would be resolved a second time (pyvoy writes a traceback for each), and its result
would be lost. So the future stays alive: what a cancelled `receive` returns is kept for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

Event = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

# Longer than any server takes to deliver an event that is ready.
_KNOWN_SECONDS: Final = 0.02


_Headers = Iterable[tuple[bytes, bytes]]


def header(message: Scope, name: bytes) -> bytes:
    """The first header of that name, of a request or of the start of an answer; empty if it has none."""
    for key, value in message["headers"]:
        if key == name:
            return bytes(value)
    return b""


async def answer(
    send: Send, status: int, content: bytes, content_type: bytes = b"application/json", headers: _Headers = ()
) -> None:
    """Send a whole answer."""
    about = [(b"content-type", content_type), (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": content, "more_body": False})


class ClientGone(ConnectionError):
    """The client disconnected; no answer is expected."""


class SteadyReceive:
    """A `receive` that may be cancelled. One caller at a time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pending: asyncio.Future[Event] | None = None

    async def __call__(self) -> Event:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._receive())
        event = await asyncio.shield(self._pending)
        self._pending = None
        return event


def steady_send(send: Send) -> Send:
    """A `send` that may be cancelled; what it was given is sent all the same."""

    async def steady(event: Event) -> None:
        sending = send(event)
        if isinstance(sending, asyncio.Future):
            sending.add_done_callback(_look_at)
            await asyncio.shield(sending)
        else:  # cannot wait, or belongs to a server whose coroutines know of cancellation
            await sending

    return steady


def _look_at(sending: asyncio.Future[None]) -> None:
    """Retrieve the exception of a future without a waiter; asyncio would log it otherwise."""
    if not sending.cancelled():
        sending.exception()


async def is_gone(receive: Receive) -> bool:
    """Whether the client of a request that was read whole has gone.

    Some servers answer at once either way, others only when it goes.
    """
    try:
        async with asyncio.timeout(_KNOWN_SECONDS):
            event = await receive()
    except TimeoutError:
        return False
    return bool(event["type"] == "http.disconnect")
