"""The one loop that runs every service: step, wait until the next wake or a nudge, repeat.

Owns the threads and the error policy. A step that finds the disk full frees space and retries; any other
failure is logged, reported to `Health` and tried again after a growing pause, except those after which it is
not known what is on disk, and those that end the thread: they stop the broker. A service is tested by calling
`run_once`; threads are tested here, once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

from tidemill.broker.health import Health
from tidemill.core.clock import LONGEST_WAIT_MS, Clock
from tidemill.core.errors import BrokerClosedError, CorruptionError, DiskFullError, SyncFailedError

logger = logging.getLogger(__name__)

_PAUSE_MS_FIRST = 50
# No wait is longer: a longer pause would be logged and not taken.
_PAUSE_MS_MAX = LONGEST_WAIT_MS
_SWITCH_SECONDS = 0.0005

Step = Callable[[int], int | None]


def let_services_in() -> None:
    """Let a service of this process have the interpreter within half a millisecond of asking for it."""
    sys.setswitchinterval(_SWITCH_SECONDS)


class Service:
    """A step function with its own wake-up, run by one thread or by hand."""

    def __init__(
        self, name: str, step: Step, clock: Clock, make_room: Callable[[], bool], health: Health
    ) -> None:
        self.name = name
        self._step = step
        self._clock = clock
        self._make_room = make_room
        self._health = health
        health.register(name)
        self._lock = threading.Lock()  # one step at a time, from any thread
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def run_once(self, step: Step | None = None) -> int | None:
        """Take one step now (another one if given); returns when the next is due."""
        with self._lock:
            while True:
                try:
                    return (step or self._step)(self._clock.now_ms())
                except DiskFullError:
                    if not self._make_room():
                        raise

    def wake(self) -> None:
        self._wake.set()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"tidemill-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        try:
            self._run_until_stopped()
        except BaseException as fault:
            self._health.stop(self.name, fault)

    def _run_until_stopped(self) -> None:
        pause_ms = _PAUSE_MS_FIRST
        while not self._stopping:
            self._wake.clear()
            try:
                wake_ms = self.run_once()
                pause_ms = _PAUSE_MS_FIRST
                self._health.recovered(self.name)
            except (SyncFailedError, CorruptionError, BrokerClosedError):
                raise
            except Exception as fault:
                self._health.failed(self.name, fault)
                self._tell(fault, pause_ms)
                wake_ms = self._clock.now_ms() + pause_ms
                pause_ms = min(_PAUSE_MS_MAX, pause_ms * 2)
            if not self._stopping:
                self._clock.wait(self._wake, wake_ms)

    def _tell(self, fault: Exception, pause_ms: int) -> None:
        """Once with its trace, then in one line; a full disk without a trace, and not for ever."""
        is_for_want_of_room = isinstance(fault, DiskFullError)
        if is_for_want_of_room and pause_ms == _PAUSE_MS_MAX:
            return
        has_trace = pause_ms == _PAUSE_MS_FIRST and not is_for_want_of_room
        text = "%s failed and is retried within %d ms: %s"
        logger.error(text, self.name, pause_ms, fault, exc_info=has_trace)
