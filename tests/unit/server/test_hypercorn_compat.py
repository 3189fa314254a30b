"""What the application relies on and hypercorn does not give by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidemill.server.asgi import Event
from tidemill.server.process.hypercorn_compat import _Caller

_PART = {"type": "http.request", "body": b"part", "more_body": True}
_END = {"type": "http.request", "body": b"", "more_body": False}
_GONE = {"type": "http.disconnect"}
_MORE = {"type": "http.response.body", "body": b"", "more_body": True}
_LAST = {"type": "http.response.body", "body": b"", "more_body": False}


def _with_caller(scene: Callable[[_Caller, asyncio.Queue[Event], list[Event]], Awaitable[None]]) -> None:
    async def run() -> None:
        coming: asyncio.Queue[Event] = asyncio.Queue()
        sent: list[Event] = []

        async def send(event: Event) -> None:
            sent.append(event)

        caller = _Caller(coming.get, send)
        await asyncio.wait_for(scene(caller, coming, sent), 20)
        caller.close()

    asyncio.run(run())


@pytest.mark.parametrize("before", [[], [_END]])
def test_what_is_sent_to_a_client_that_has_gone_raises(before: list[Event]) -> None:
    async def scene(caller: _Caller, coming: asyncio.Queue[Event], sent: list[Event]) -> None:
        await caller.send(_MORE)
        for event in [*before, _GONE]:
            coming.put_nowait(event)
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                await caller.send(_MORE)
        await caller.send(_LAST)
        assert sent == [_MORE, _LAST]
        assert [await caller.receive() for _ in range(len(before) + 1)] == [*before, _GONE]

    _with_caller(scene)


@pytest.mark.parametrize("sends", [0, 1, 3])
def test_what_came_is_received_whole_and_in_order_whatever_is_sent_meanwhile(sends: int) -> None:
    async def scene(caller: _Caller, coming: asyncio.Queue[Event], sent: list[Event]) -> None:
        expected = [_PART, _PART, _END, _GONE]
        received = []
        for event in expected:
            for _ in range(sends):
                await caller.send(_MORE)
            coming.put_nowait(event)
            if event is not _GONE:
                for _ in range(sends):
                    await caller.send(_MORE)
            received.append(await caller.receive())
        assert received == expected

    _with_caller(scene)


def test_a_task_that_waits_for_an_event_gets_it_once_though_another_sends() -> None:
    async def scene(caller: _Caller, coming: asyncio.Queue[Event], sent: list[Event]) -> None:
        waiting: asyncio.Task[Any] = asyncio.create_task(caller.receive())
        await caller.send(_MORE)
        coming.put_nowait(_END)
        await caller.send(_MORE)
        assert await waiting == _END
        coming.put_nowait(_GONE)
        assert await caller.receive() == _GONE

    _with_caller(scene)


def test_a_receive_that_was_cancelled_loses_nothing() -> None:
    async def scene(caller: _Caller, coming: asyncio.Queue[Event], sent: list[Event]) -> None:
        waiting = asyncio.create_task(caller.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        coming.put_nowait(_PART)
        assert await caller.receive() == _PART

    _with_caller(scene)
