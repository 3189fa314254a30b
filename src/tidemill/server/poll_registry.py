"""The long polls of the admin API, shared with those of the other endpoints.

The store announces arrivals to one listener, so all endpoints of a process share one `LongPolls`. It belongs
to an event loop and can only be created there; this module creates it on first use unless the process passed
its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.broker import Broker
from tidemill.server.long_poll import LongPolls


class PollRegistry:
    """Long polls of one broker. Use on the event loop only."""

    def __init__(self, broker: Broker, polls: Callable[[], LongPolls] | None = None) -> None:
        self._broker = broker
        self._polls = polls
        self._own: LongPolls | None = None

    def _long_polls(self) -> LongPolls:
        if self._polls is not None:
            return self._polls()
        if self._own is None:
            self._own = LongPolls(self._broker.store.notifier, self._broker.receiver.has_news)
        return self._own

    @property
    def bell(self) -> int:
        """Note this before looking for messages, and hand it to `wait` when there were none."""
        return self._long_polls().bell

    @property
    def is_closed(self) -> bool:
        return self._long_polls().is_closed

    async def wait(self, key: tuple[str, str], bell: int, timeout_ms: int) -> None:
        """Return when there may be something for this (topic, group), or after a time."""
        visible_ms = self._broker.receiver.next_visible_ms(*key)
        if visible_ms is not None:
            self._long_polls().look_in(key, (visible_ms - self._broker.clock.now_ms()) / 1000)
        await self._long_polls().wait(key, bell, timeout_ms / 1000)

    def nudge(self, key: tuple[str, str]) -> None:
        """Let the next who waits for this key look: there may be more than one took."""
        self._long_polls().nudge(key)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
