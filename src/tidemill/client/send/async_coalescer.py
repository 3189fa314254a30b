"""Joins the sends of many tasks into one request, without a timer.

What gathers while a request is in flight travels together, and a single send goes in the same iteration of
the loop.

Invariant: every caller gets exactly one answer; one that was cancelled does not disturb the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from tidemill.client.send.request_limits import BYTES_MAX, MESSAGES_MAX, weight_of
from tidemill.core.errors import UnreachableError
from tidemill.core.model import Draft
from tidemill.core.send_answers import Answer
from tidemill.core.splitting import first_part

_LANES = 2

SendBatch = Callable[[Sequence[Draft]], Coroutine[None, None, Sequence[Answer]]]


class AsyncCoalescer:
    """Joins concurrent sends of one event loop."""

    def __init__(self, send_batch: SendBatch) -> None:
        self._send_batch = send_batch
        self._waiting: list[tuple[Draft, asyncio.Future[Answer]]] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    async def send(self, draft: Draft) -> Answer:
        """The answer to one send: its result or its error. Raises if the request failed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((draft, waiter))
        if not self._is_scheduled and len(self._under_way) < _LANES:
            self._is_scheduled = True
            loop.call_soon(self._flush)
        try:
            return await waiter
        finally:
            del waiter  # and with it what it raises, which holds this frame

    def _flush(self) -> None:
        self._is_scheduled = False
        while self._waiting and len(self._under_way) < _LANES:
            batch = first_part(self._waiting, MESSAGES_MAX, BYTES_MAX, lambda sent: weight_of(sent[0]))
            self._waiting = self._waiting[len(batch) :]
            task = asyncio.get_running_loop().create_task(self._carry(batch))
            self._under_way.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._flush()

    async def _carry(self, batch: Sequence[tuple[Draft, asyncio.Future[Answer]]]) -> None:
        asking = asyncio.get_running_loop().create_task(self._send_batch([draft for draft, _ in batch]))
        await asyncio.wait([asking])
        fault = UnreachableError("the client was closed") if asking.cancelled() else asking.exception()
        for index, (_, waiter) in enumerate(batch):
            if waiter.done():
                continue
            if fault is not None:
                waiter.set_exception(fault)
            else:
                waiter.set_result(asking.result()[index])
