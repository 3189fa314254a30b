"""What follows an append: the effects of a frame are made visible, in log order, when it may be acknowledged.

Owns the effects of frames that were applied and may not be acknowledged yet (queue rows, settlements), how
far seqs are safe, and the fault that stopped the store. None of it needs the writer lock.

Consumers wait on a counter that rises with every announcement (`QueueNotifier`). A consumer notes the count,
looks, and if it found nothing waits for the count to move on: no announcement between the look and the wait
is missed, and no lock is held while looking.

Invariants:
- effects are published in log order, each once, only below the acknowledged end; one that cannot be published
  stays the first, and the next call tries it again;
- after a fault nothing more is appended: only opening the store again can find out what is true.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidemill.core.errors import StorageError
from tidemill.log.group_commit import GroupCommit
from tidemill.log.segments import SegmentedLog
from tidemill.store.formats.frames import Settlement
from tidemill.store.indexes import Effects
from tidemill.store.topic_queues import TopicQueues


class QueueNotifier:
    """A counter to wait on. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # protects count and _freed
        self.count = 0
        self._freed: set[tuple[str, str]] = set()
        # Called after each announcement, on the announcing thread; must neither block nor raise.
        self.listener: Callable[[], None] | None = None

    def announce(self, freed: Iterable[tuple[str, str]] = ()) -> None:
        """Something became visible; `freed` names each (topic, group) for which it may be nothing new."""
        with self._changed:
            self.count += 1
            if self.listener is not None:
                self._freed.update(freed)
            self._changed.notify_all()
        if self.listener is not None:
            self.listener()

    def take_freed(self) -> set[tuple[str, str]]:
        """What was freed since the last call. Only the listener calls it."""
        if not self._freed:
            return set()
        with self._changed:
            freed, self._freed = self._freed, set()
        return freed

    def wait(self, seen: int, timeout_ms: int) -> None:
        """Return when the count is no longer `seen`, or after `timeout_ms`."""
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen, timeout_ms / 1000)


class Publisher:
    """Publishes what frames do. Thread-safe; `add` is called in log order."""

    def __init__(
        self,
        log: SegmentedLog,
        commit: GroupCommit,
        queues: TopicQueues,
        settle: Callable[[Sequence[Settlement]], None],
        on_fault: Callable[[BaseException], None],
        safe_seq: int,
    ) -> None:
        self.notifier = QueueNotifier()
        self.fault: BaseException | None = None
        self._log = log
        self._commit = commit
        self._queues = queues
        self._settle = settle
        self._on_fault = on_fault
        self._lock = threading.Lock()  # protects the order of publications
        self._unpublished: deque[tuple[int, Effects]] = deque()  # frame end, what it does outside the indexes
        self._safe_lock = threading.Lock()  # protects _safe_seq
        self._unsafe: deque[tuple[int, int]] = deque()  # frame end, next seq after it
        self._safe_seq = safe_seq

    def add(self, end: int, effects: Effects, next_seq: int) -> None:
        """Keep what a frame does until it may be acknowledged; `next_seq`: after it, 0 if it made no seq."""
        self._unpublished.append((end, effects))
        if next_seq:
            self._unsafe.append((end, next_seq))

    def stop(self, fault: BaseException) -> None:
        """Report a fault after which nothing more may be appended."""
        self.fault = fault
        self._on_fault(fault)

    def safe_seq(self) -> int:
        """Every seq below this one survives a power cut; the pipeline reads no further."""
        with self._safe_lock:
            while self._unsafe and self._unsafe[0][0] <= self._log.synced_end:
                _, self._safe_seq = self._unsafe.popleft()
            return self._safe_seq

    def publish(self) -> None:
        """Write the queue rows of every frame that may be acknowledged, in log order."""
        has_new_rows = False
        try:
            with self._lock:
                acknowledged = self._commit.acknowledged_end
                while self._unpublished and self._unpublished[0][0] <= acknowledged:
                    _, effects = self._unpublished[0]
                    self._take_effect(effects)
                    self._unpublished.popleft()
                    has_new_rows = has_new_rows or effects.publication is not None
        except StorageError as fault:  # not a full disk: that passes, and the next call tries again
            self.stop(fault)
            raise
        if has_new_rows:
            self.notifier.announce()

    def _take_effect(self, effects: Effects) -> None:
        if effects.publication is not None:
            self._queues.publish(effects.publication)
        if effects.settlements:
            self._settle(effects.settlements)
        if effects.forgotten_topic_id is not None:
            self._queues.forget(effects.forgotten_topic_id)
