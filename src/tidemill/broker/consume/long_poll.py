"""Receiving with patience: waits until messages are there, or the time is up.

Owns the wait only; what is handed out, and to whom, is the receiver's. It waits in real time, also on a
simulated clock: the caller is real.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.consume.receiver import Receiver, TagFilter
from tidemill.core.arguments import require_whole
from tidemill.core.clock import Clock, stopwatch_s
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Delivery
from tidemill.store.publishing import QueueNotifier


class LongPoll:
    """Thread-safe. `require_open` ends a wait when the broker closes under it."""

    def __init__(
        self, receiver: Receiver, notifier: QueueNotifier, clock: Clock, require_open: Callable[[], None]
    ) -> None:
        self._receiver = receiver
        self._notifier = notifier
        self._clock = clock
        self._require_open = require_open

    def receive(
        self,
        topic: str,
        group: str,
        *,
        count: int,
        wait_ms: int,
        invisible_ms: int,
        accepts_tag: TagFilter | None,
        one_per_message_group: bool,
    ) -> list[Delivery]:
        """Take messages; waits up to `wait_ms` for the first one."""
        require_whole("wait_ms", wait_ms, 0, DAY_MS)
        until_s = stopwatch_s() + wait_ms / 1000
        while True:
            self._require_open()
            seen = self._notifier.count
            found = self._receiver.receive(
                topic,
                group,
                count=count,
                invisible_ms=invisible_ms,
                accepts_tag=accepts_tag,
                one_per_message_group=one_per_message_group,
            )
            left_ms = round((until_s - stopwatch_s()) * 1000)
            if found or left_ms <= 0:
                return found
            visible_ms = self._receiver.next_visible_ms(topic, group)
            if visible_ms is not None and not self._clock.is_simulated:
                left_ms = min(left_ms, max(1, visible_ms - self._clock.now_ms()))
            self._notifier.wait(seen, left_ms)
