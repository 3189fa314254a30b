"""Joins concurrent calls into batches: many waiters, one batch, one sync.

Owns the queue in front of a broker operation and the few threads that run it. A batch is what has gathered
while the previous ones ran, so a single call runs at once and concurrent calls share a frame. After a batch
of several calls the next one may start after a short pause (`pause_s`): a batch of fifty costs little more
than one of ten, and the saved time shortens the queue. Every waiter gets its own answer, or the error of its
batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from tidemill.core.splitting import first_part

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_MANY = 4  # so many at once are not one caller that sends one after the other


class Batcher(Generic[Item, Answer]):
    """Runs a batch verb for single calls. Lives on one event loop; `submit` is the only entrance."""

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Answer]],
        executor: ThreadPoolExecutor,
        *,
        in_flight_max: int,
        batch_max: int,
        size_max: int = 0,
        size_of: Callable[[Item], int] | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self._run = run
        self._executor = executor
        self._in_flight_max = in_flight_max
        self._batch_max = batch_max
        self._size_max = size_max
        self._size_of = size_of
        self._pause_s = pause_s
        self._in_flight = 0
        self._is_scheduled = False
        self._earliest_s = 0.0  # when the next batch may go
        self._items: list[Item] = []
        self._waiters: list[asyncio.Future[Answer]] = []

    @property
    def waiting(self) -> int:
        return len(self._items)

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """The future answer to one item."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Answer] = loop.create_future()
        self._items.append(item)
        self._waiters.append(waiter)
        # One turn of the loop later: everything that has arrived with this item goes along with it.
        if not self._is_scheduled and self._in_flight < self._in_flight_max:
            self._schedule(loop)
        return waiter

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = True
        if loop.time() < self._earliest_s:
            loop.call_at(self._earliest_s, self._flush, loop)
        else:
            loop.call_soon(self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        if not self._items or self._in_flight >= self._in_flight_max:
            return
        items = first_part(self._items, self._batch_max, self._size_max, self._size_of)
        count = len(items)
        self._items = self._items[count:]
        waiters, self._waiters = self._waiters[:count], self._waiters[count:]
        self._in_flight += 1
        self._earliest_s = loop.time() + self._pause_s if count >= _MANY else 0.0
        done = self._executor.submit(self._run, items)
        done.add_done_callback(
            lambda finished: loop.call_soon_threadsafe(self._done, loop, waiters, finished)
        )
        if self._items:
            self._flush(loop)

    def _done(
        self,
        loop: asyncio.AbstractEventLoop,
        waiters: Sequence[asyncio.Future[Answer]],
        finished: Future[Sequence[Answer]],
    ) -> None:
        self._in_flight -= 1
        if self._items and not self._is_scheduled:
            self._schedule(loop)
        fault = finished.exception()
        answers = finished.result() if fault is None else ()
        for index, waiter in enumerate(waiters):
            if waiter.done():  # its client has gone
                continue
            if fault is not None:
                waiter.set_exception(fault)
            else:
                waiter.set_result(answers[index])
