"""What waits until its frame may be acknowledged: queue rows and settlements, made visible in log order.

Owns the effects of frames that were applied and are not safe yet.

Invariant: effects are published in log order, each once, only below the acknowledged end. One that cannot be
published stays the first; the next call tries it again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tidemill.log.group_commit import GroupCommit
from tidemill.store.formats.frames import Settlement
from tidemill.store.indexes import Effects
from tidemill.store.queue_notifier import QueueNotifier
from tidemill.store.topic_queues import TopicQueues


class Publisher:
    """Publishes the effects of frames. Thread-safe; `add` is called in log order."""

    def __init__(
        self,
        commit: GroupCommit,
        queues: TopicQueues,
        settle: Callable[[Sequence[Settlement]], None],
        notifier: QueueNotifier,
    ) -> None:
        self._lock = threading.Lock()  # protects the order of publications
        self._commit = commit
        self._queues = queues
        self._settle = settle
        self._notifier = notifier
        self._waiting: deque[tuple[int, Effects]] = deque()

    def add(self, end: int, effects: Effects) -> None:
        """Keep the effects of the frame that ends there until it may be acknowledged."""
        self._waiting.append((end, effects))

    def publish(self) -> None:
        """Write the queue rows of every frame that may be acknowledged, in log order."""
        has_new_rows = False
        with self._lock:
            acknowledged = self._commit.acknowledged_end
            while self._waiting and self._waiting[0][0] <= acknowledged:
                _, effects = self._waiting[0]
                self._take_effect(effects)
                self._waiting.popleft()
                has_new_rows = has_new_rows or effects.publication is not None
        if has_new_rows:
            self._notifier.announce()

    def _take_effect(self, effects: Effects) -> None:
        if effects.publication is not None:
            self._queues.publish(effects.publication)
        if effects.settlements:
            self._settle(effects.settlements)
        if effects.forgotten_topic_id is not None:
            self._queues.forget(effects.forgotten_topic_id)
