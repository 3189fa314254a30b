"""Watches a topic of a broker in the same process, and notes when each message became visible.

A message counts as there when its queue row is visible and consumers were woken. The watcher waits for that
wake-up and reads the clock, so its own wake-up time is included.
"""

from __future__ import annotations

import numpy as np

from tidemill.broker.broker import Broker
from tidemill.cli.bench.workload import TOPIC
from tidemill.core.clock import wall_s

_WAIT_MS = 500


class Watcher:
    """For one thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = broker.topics.find_or_create(TOPIC)
        self._seen = [0] * self._topic.queue_count
        self.late_ms: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self.last_seen_s = 0.0

    @property
    def seen(self) -> int:
        return sum(self._seen)

    def wait_for(self, count: int, until_s: float) -> None:
        """Return when `count` messages were seen, or at the time given."""
        notifier = self._broker.store.notifier
        while self.seen < count and wall_s() < until_s:
            known = notifier.count
            if not self._look():
                notifier.wait(known, _WAIT_MS)

    def _look(self) -> bool:
        seen_s = wall_s()
        has_new = False
        for queue_id, first in enumerate(self._seen):
            queue = (self._topic.id, queue_id)
            end = self._broker.store.queues.end(queue)
            if end > first:
                rows = self._broker.store.queues.read(queue, first, end)
                self.late_ms.append(seen_s * 1000 - rows["deliver_at_ms"])
                self._seen[queue_id] = end
                self.last_seen_s = seen_s
                has_new = True
        return has_new
