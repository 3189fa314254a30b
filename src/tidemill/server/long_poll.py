"""Long polls of consumers: no thread per waiter, woken when there is something to receive.

Owns the waiters of each (topic, group), in order of arrival. An announcement from the store wakes the first
waiter of every group that has something new; it takes what it can, and the next is woken if more is there. A
shortened lease, and a FIFO group that may deliver its next message, wake by announcement too. When the next
lease of a key ends, its first waiter is woken by a timer; each look reports when that is, so that the timer
knows of leases that began after the poll. All of it happens on the event loop; the store's threads only
schedule a callback there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidemill.store.publishing import QueueNotifier

Key = tuple[str, str]  # topic, group
_SOON_S = 0.001


class LongPolls:
    """Waiting consumers. Lives on one event loop; only `notify` may be called from other threads."""

    def __init__(self, notifier: QueueNotifier, has_news: Callable[[str, str], bool]) -> None:
        self._notifier = notifier
        self._has_news = has_news
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call
        self._waiting: dict[Key, deque[asyncio.Future[None]]] = {}
        self._freed: dict[Key, int] = {}  # the count of announcements when a key's messages were freed last
        self._timers: dict[Key, asyncio.TimerHandle] = {}  # when a key's next lease ends
        self._is_scheduled = False
        self._is_closed = False
        notifier.listener = self.notify

    @property
    def count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def notify(self) -> None:
        """Something became visible somewhere. Safe from any thread."""
        if self._loop is None or self._loop.is_closed():
            return
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._wake_ready)

    def _wake_ready(self) -> None:
        self._is_scheduled = False
        freed = self._notifier.take_freed()
        self._freed.update(dict.fromkeys(freed, self._notifier.count))
        for key in list(self._waiting):
            if key in freed or self._has_news(*key):
                self.wake_one(key)

    def wake_in(self, key: Key, delay_s: float) -> None:
        """The key's next lease ends then, as far as a look has shown: let one who waits look again."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(_SOON_S, delay_s)
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= at_s:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(at_s, self._wake_at, key)

    def _wake_at(self, key: Key) -> None:
        del self._timers[key]
        self.wake_one(key)

    def wake_one(self, key: Key) -> None:
        """Wake the first who waits for this key."""
        queue = self._waiting.get(key)
        while queue:
            waiter = queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        if queue is not None and not queue:
            del self._waiting[key]

    @property
    def announced(self) -> int:
        """Note this before looking for messages, and hand it to `wait` when there were none."""
        self._loop = asyncio.get_running_loop()  # before the count: from here on `notify` is effective
        return self._notifier.count

    async def wait(self, key: Key, seen: int, timeout_s: float) -> None:
        """Return when there may be something for this key that was not there at `seen`, or after a time."""
        if self._is_closed or timeout_s <= 0 or self._freed.get(key, seen) > seen:
            return
        if self._notifier.count != seen and self._has_news(*key):
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(key, deque()).append(waiter)
        timer = loop.call_later(timeout_s, _expire, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            queue = self._waiting.get(key)
            if queue is not None and waiter in queue:
                queue.remove(waiter)
                if not queue:
                    del self._waiting[key]

    def close(self) -> None:
        """Wake all waiters, and accept no more."""
        self._is_closed = True
        self._notifier.listener = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for key in list(self._waiting):
            while key in self._waiting:
                self.wake_one(key)

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
