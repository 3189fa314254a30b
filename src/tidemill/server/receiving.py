"""Receives messages for a consumer of any protocol, and waits for them without a thread (`long_poll.py`).

Owns the order of a receive: take, else wait, see that the caller is still there, and take again. What was
taken for a call that ended meanwhile, or exceeds the response budget, is returned untried. Which messages a
consumer gets is decided by the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tidemill.broker.broker import Broker
from tidemill.broker.consume.receiver import TagFilter
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.model import Delivery
from tidemill.server.asgi import ClientGone
from tidemill.server.long_poll import LongPolls
from tidemill.server.response_budget import reserve

# Concurrent takes of messages, per endpoint: their bodies are in memory before they are counted.
_TAKES_MAX = 8
_SIMULATED_WAIT_S = 0.5

_Taken = tuple[list[Delivery], int | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for."""

    topic: str
    group: str
    count: int
    invisible_ms: int
    accepts_tag: TagFilter | None
    one_per_message_group: bool = False


class Receiving:
    """The receives of one endpoint. Lives on one event loop."""

    def __init__(self, broker: Broker, polls: LongPolls, executor: ThreadPoolExecutor) -> None:
        self._broker = broker
        self._polls = polls
        self._executor = executor
        self._takes = asyncio.Semaphore(_TAKES_MAX)

    async def receive(
        self,
        wanted: Wanted,
        wait_s: float,
        is_there: Callable[[], Awaitable[bool]],
        on_wait: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Delivery]:
        """Messages, after waiting up to `wait_s` for the first one; `ClientGone` if its caller has gone.

        The wait is in real time, also where the broker's clock is simulated: the caller is real.
        """
        loop, key = asyncio.get_running_loop(), (wanted.topic, wanted.group)
        until_s = loop.time() + wait_s
        while True:
            seen = self._polls.announced
            async with self._takes:
                found, visible_ms = await self._take_or_give_back(wanted)
                await self._reserve(found)
            if visible_ms is not None:
                self._polls.wake_in(key, (visible_ms - self._broker.clock.now_ms()) / 1000)
            left_s = until_s - loop.time()
            if found or left_s <= 0 or self._polls.is_closed:
                if self._broker.receiver.has_news(*key):
                    self._polls.wake_one(key)
                return found
            if on_wait is not None:
                await on_wait()
            if self._broker.clock.is_simulated:  # leases end by a clock that this loop does not see
                left_s = min(left_s, _SIMULATED_WAIT_S)
            await self._polls.wait(key, seen, left_s)
            if not await is_there():
                self._polls.wake_one(key)  # what woke this one is for another waiter
                raise ClientGone

    async def _take_or_give_back(self, wanted: Wanted) -> _Taken:
        """Take messages; if the call ends meanwhile, they go back as soon as they are taken."""
        taking = asyncio.get_running_loop().run_in_executor(self._executor, self._take, wanted)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._return_late)
            raise

    def _take(self, wanted: Wanted) -> _Taken:
        found = self._broker.receive(
            wanted.topic,
            wanted.group,
            count=wanted.count,
            invisible_ms=wanted.invisible_ms,
            accepts_tag=wanted.accepts_tag,
            one_per_message_group=wanted.one_per_message_group,
        )
        return found, self._broker.receiver.next_visible_ms(wanted.topic, wanted.group)

    def _return_late(self, taking: asyncio.Future[_Taken]) -> None:
        if not taking.cancelled() and taking.exception() is None and (found := taking.result()[0]):
            self._executor.submit(self._return, found)

    async def _reserve(self, found: list[Delivery]) -> None:
        """Return messages untried that exceed the response budget."""
        try:
            reserve(delivery.message.body for delivery in found)
        except TooManyRequestsError:
            await asyncio.get_running_loop().run_in_executor(self._executor, partial(self._return, found))
            raise

    def _return(self, found: list[Delivery]) -> None:
        tokens = [delivery.ack_token for delivery in found]
        self._broker.change_invisibility(tokens, 0, is_untried=True)
