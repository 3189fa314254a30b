"""Group commit: one sync for all that wait.

Owns who syncs a log and who waits. A caller that needs the log safe up to its frame becomes the leader of
the next sync when fewer than `in_flight_max` are under way, else it waits for one that covers it. There is
no thread of its own, so a single-threaded simulation runs the very same code.

Invariants: `wait` returns only when the log is safe up to the asked end (durability `sync`); after one
failed sync every wait raises, because what is on disk is not known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import SyncFailedError
from tidemill.core.histogram import Histogram
from tidemill.log.segments import SegmentedLog


class GroupCommit:
    """Waits for one log's sync, leading it where no other caller does."""

    def __init__(
        self,
        log: SegmentedLog,
        *,
        in_flight_max: int = 4,
        is_sync: bool = True,
        on_fault: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._in_flight_max = in_flight_max
        self._is_sync = is_sync
        self._on_fault = on_fault  # hears of the first sync that failed
        self._changed = threading.Condition()  # protects _in_flight, _claimed_end and _failure
        self._in_flight = 0
        self._claimed_end = 0
        self._failure: SyncFailedError | None = None
        self.sync_durations = Histogram()  # for those who look on

    @property
    def acknowledged_end(self) -> int:
        """Up to where callers may be answered: the synced end, or all that is written if `async`."""
        return self._log.synced_end if self._is_sync else self._log.written_end

    def wait(self, end: int) -> None:
        """Return when the log may be acknowledged up to `end`."""
        if self._is_sync:
            self.wait_synced(end)
        elif self._failure is not None:
            raise self._failure

    def wait_synced(self, end: int) -> None:
        """Return when the log is safe up to `end`, leading a sync where no other caller does."""
        while True:
            with self._changed:
                while self._must_wait(end):
                    self._changed.wait()
                if self._failure is not None:
                    raise self._failure
                if self._log.synced_end >= end:
                    return
                self._in_flight += 1
                self._claimed_end = max(self._claimed_end, self._log.written_end)
            self._lead()
            if self._is_safe(end):
                return

    def _is_safe(self, end: int) -> bool:
        return self._failure is None and self._log.synced_end >= end

    def _must_wait(self, end: int) -> bool:
        if self._failure is not None or self._log.synced_end >= end or self._in_flight == 0:
            return False
        return self._claimed_end >= end or self._in_flight >= self._in_flight_max

    def _lead(self) -> None:
        failure: SyncFailedError | None = None
        began_s = stopwatch_s()
        try:
            self._log.sync()
        except SyncFailedError as error:
            failure = error
        finally:
            with self._changed:
                self._in_flight -= 1
                self.sync_durations.add(stopwatch_s() - began_s)
                is_first = self._failure is None
                self._failure = self._failure or failure
                self._changed.notify_all()
        if failure is not None and is_first:
            self._on_fault(failure)
