"""Waiting consumers: woken when there is something for them, in their order, and never missed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from tidemill.server.long_poll import LongPolls
from tidemill.store.publishing import QueueNotifier

_KEY = ("topic", "group")
_OTHER = ("topic", "others")
_LONG_S = 30.0


def _run(scene: Callable[[LongPolls, QueueNotifier, set[tuple[str, str]]], Awaitable[None]]) -> None:
    async def main() -> None:
        notifier, news = QueueNotifier(), set[tuple[str, str]]()
        await scene(LongPolls(notifier, lambda topic, group: (topic, group) in news), notifier, news)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_an_announcement_wakes_the_first_of_those_it_concerns() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        keys = (_KEY, _KEY, _OTHER)
        waits = [asyncio.create_task(polls.wait(key, polls.announced, _LONG_S)) for key in keys]
        await asyncio.sleep(0)  # each begins to wait at its first turn
        assert polls.count == 3
        news.add(_KEY)
        threading.Thread(target=notifier.announce).start()
        await waits[0]
        assert polls.count == 2
        polls.wake_one(_KEY)
        await waits[1]
        assert not waits[2].done()
        polls.close()
        await waits[2]

    _run(scene)


def test_what_arrived_between_the_look_and_the_wait_is_not_missed() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        seen = polls.announced
        news.add(_KEY)
        notifier.announce()
        await polls.wait(_KEY, seen, _LONG_S)

    _run(scene)


def test_news_that_were_there_at_the_look_do_not_spin() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        news.add(_KEY)  # there, but not to be had: an earlier message of its group is out
        wait = asyncio.create_task(polls.wait(_KEY, polls.announced, _LONG_S))
        await asyncio.sleep(0)
        assert polls.count == 1
        assert not wait.done()
        polls.wake_one(_KEY)
        await wait

    _run(scene)


def test_a_wait_ends_by_itself_and_leaves_nothing_behind() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        await polls.wait(_KEY, polls.announced, 0.01)
        cancelled = asyncio.create_task(polls.wait(_KEY, polls.announced, _LONG_S))
        await asyncio.sleep(0)
        assert polls.count == 1
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert polls.count == 0

    _run(scene)


def test_what_is_freed_wakes_though_it_is_nothing_new() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        waits = [asyncio.create_task(polls.wait(key, polls.announced, _LONG_S)) for key in (_KEY, _OTHER)]
        await asyncio.sleep(0)
        threading.Thread(target=notifier.announce, args=([_KEY],)).start()
        await waits[0]
        assert not waits[1].done()
        polls.close()
        await waits[1]

    _run(scene)


def test_what_was_freed_between_the_look_and_the_wait_is_not_missed() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        seen = polls.announced
        notifier.announce([_KEY])
        await asyncio.sleep(0)  # the notification comes while no call waits
        await polls.wait(_KEY, seen, _LONG_S)

    _run(scene)


def test_the_end_of_a_lease_wakes_the_first_though_it_came_before_the_lease() -> None:
    async def scene(polls: LongPolls, notifier: QueueNotifier, news: set[tuple[str, str]]) -> None:
        waits = [asyncio.create_task(polls.wait(_KEY, polls.announced, _LONG_S)) for _ in range(2)]
        await asyncio.sleep(0)
        polls.wake_in(_KEY, 20.0)
        polls.wake_in(_KEY, 0.0)
        polls.wake_in(_KEY, 20.0)
        await waits[0]
        assert not waits[1].done()
        polls.close()
        await waits[1]

    _run(scene)
