"""The window of release records under way: appended to the log, and not yet known to be safe.

Owns how many there may be (`--commits-in-flight`) and who waits for each. With one, the releaser waits for
every record before it works out the next: the synchronous mode. With more it goes on while earlier records
are being synced, each by a thread of the pool; when the window is full it waits for the oldest: that is the
flow control. Without a pool (a simulated clock, a broker without threads) records are finished when the
window is full and at the end of the step, by the releaser's own thread.

Owns also the pacing. A record costs the same whether one message is in it or fifty. Where hundreds of records
a second would follow each other, the releaser lets a few milliseconds of messages gather for each; what that
adds to their lateness is less than a busy processor would. A message that comes alone never waits for it.

Invariants:
- a record leaves the window only when it is finished: safe, and its queue rows are published. Publishing goes
  in log order (`Publisher.publish`), so records leave in the order in which they came, in both modes;
- a record is in the log, so nothing is skipped or tried twice. What could not be finished stays, whichever
  thread tried, and the releaser's own thread finishes it in its next step: there a fault meets the usual
  policy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tidemill.core.clock import stopwatch_s
from tidemill.log.arrays import I64, U32, Rows
from tidemill.store.commit_log import Appended


@dataclass(frozen=True, slots=True)
class Record:
    """Rows that are released together, each of the topic beside it."""

    appended: Appended
    rows: Rows
    topic_ids: U32
    planned_s: float  # on the stopwatch: when the work on it began
    began_s: float  # when it was appended


class CommitWindow:
    """Release records under way. One thread calls; those of the pool only finish what it has put."""

    def __init__(
        self,
        size: int,
        finish: Callable[[Appended], None],
        finished: Callable[[Record], None],
        *,
        has_pool: bool,
        on_trouble: Callable[[], None],
    ) -> None:
        self.size = size
        self._finish = finish
        self._finished = finished
        self._on_trouble = on_trouble
        self._pool = ThreadPoolExecutor(size, "tidemill-commit") if has_pool and size > 1 else None
        self._lock = threading.Lock()  # protects _records, and `finished` is called under it
        self._records: deque[Record] = deque()
        self._has_trouble = False
        self.last_ms = 0.0  # how long the last record took from its append to its end
        self.is_full = False  # the releaser waits for the oldest record

    @property
    def count(self) -> int:
        return len(self._records)

    def seqs(self) -> I64:
        """Seqs that are released in the ledger, and would be pending again after a power cut now."""
        with self._lock:
            return np.concatenate([np.empty(0, np.int64), *(record.rows["seq"] for record in self._records)])

    def put(
        self, appended: Appended, rows: Rows, topic_ids: U32, *, planned_s: float, may_overlap: bool
    ) -> None:
        """See that a record of these rows is finished: before this returns, unless it `may_overlap`."""
        record = Record(appended, rows, topic_ids, planned_s, stopwatch_s())
        with self._lock:
            self._records.append(record)
        if not may_overlap:
            self._finish_up_to(record)
        elif self._pool is not None:
            self._pool.submit(self._finish_up_to, record).add_done_callback(self._look_at)
        while (oldest := self._oldest_of(self.size)) is not None:
            self.is_full = self.size > 1
            self._finish_up_to(oldest)
        self.is_full = False

    def _oldest_of(self, count: int) -> Record | None:
        """The oldest record, if as many as `count` are under way."""
        with self._lock:
            return self._records[0] if len(self._records) >= count else None

    def _finish_up_to(self, record: Record) -> None:
        try:
            self._finish(record.appended)
        except BaseException:
            self._has_trouble = True
            raise
        if self._pool is not None:  # else what is done must not depend on how long it takes
            self.last_ms = (stopwatch_s() - record.began_s) * 1000
        with self._lock:
            while self._records and self._records[0].appended.end <= record.appended.end:
                self._finished(self._records.popleft())

    def _look_at(self, done: Future[None]) -> None:
        if done.exception() is not None:
            self._on_trouble()

    def resume(self) -> None:
        """Finish what could not be finished before, or raise why it still cannot."""
        if self._has_trouble or self._pool is None:
            self.drain()
            self._has_trouble = False

    def settle_step(self) -> None:
        """The end of a step: no commit stays in flight without a thread that finishes it."""
        if self._pool is None:
            self.drain()

    def drain(self) -> None:
        """Return when no record is under way."""
        with self._lock:
            newest = self._records[-1] if self._records else None
        if newest is not None:
            self._finish_up_to(newest)

    def close(self) -> None:
        """Return when no thread of the pool is at work any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


PAUSE_MS = 4
# Records that follow each other within this are one row of them; a little more than the pause itself.
_CLOSE_MS = 6
_ROW = 8


class Pacing:
    """Knows until when to pause. For one thread."""

    def __init__(self, pause_ms: int = PAUSE_MS) -> None:
        self._pause_ms = pause_ms
        self._last_ms = 0
        self._in_a_row = 0
        self.until_ms = 0

    def record_made(self, now_ms: int) -> None:
        """A release record was appended."""
        is_close = 0 <= now_ms - self._last_ms <= _CLOSE_MS
        self._in_a_row = self._in_a_row + 1 if is_close else 0
        self._last_ms = now_ms
        self.until_ms = now_ms + self._pause_ms if self._in_a_row >= _ROW else 0

    def pauses(self, now_ms: int) -> bool:
        """True while the next record is to wait; never longer than a pause, wherever the clock is set."""
        return now_ms < self.until_ms <= now_ms + self._pause_ms
