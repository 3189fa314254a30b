"""How well the broker is: the one place that knows what is wrong with it.

Owns two things, which `/healthz`, `status`, the dashboard and the metrics read here:

- *failures* of services that are tried again. A failure begins with the first step that raises and ends with
  the next one that returns. After `FAILING_MS` without a success the broker counts as `failing`; it goes on
  with everything else.
- the *fault* after which the broker takes no more requests. Its remedy is `REOPEN` where opening the
  directory again derives what is true (a frame was appended and could not be applied, an append failed
  half-way, a service ended), and `OPERATOR` where that would hide what a person must see (a failed sync,
  damaged bytes).

Invariants: the first fault stays; listeners are called once, without a lock held. Thread-safe.
A full disk is neither: sends are refused, releases go on, and `DiskSpace` reports it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tidemill.core.clock import machine_ms
from tidemill.core.errors import (
    BrokerClosedError,
    CorruptionError,
    DiskFullError,
    SyncFailedError,
    TidemillError,
)

logger = logging.getLogger(__name__)

FAILING_MS = 10_000


class Remedy(StrEnum):
    """What a fault needs."""

    REOPEN = "reopen"
    OPERATOR = "operator"


class HealthState(StrEnum):
    OK = "ok"
    FAILING = "failing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the broker takes no more requests."""

    error: BaseException
    reason: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class HealthView:
    """How the broker is at one moment, in a word and a line."""

    state: HealthState
    reason: str  # empty while all is well
    last_fault: str  # why the broker was opened again, by the process that did so; empty if it was not
    failures: dict[str, int]  # steps that failed since the start, by service

    @property
    def is_ok(self) -> bool:
        return self.state is HealthState.OK


@dataclass(slots=True)
class _Failure:
    since_ms: int
    reason: str


class Health:
    """One broker's faults and failures. `now_ms` is a clock that never leaps."""

    def __init__(self, *, last_fault: str = "", now_ms: Callable[[], int] = machine_ms) -> None:
        self._lock = threading.Lock()  # protects all below
        self._now_ms = now_ms
        self._last_fault = last_fault
        self._listeners: list[Callable[[], object]] = []
        self._fault: Fault | None = None
        self._failing: dict[str, _Failure] = {}
        self._counts: Counter[str] = Counter()

    @property
    def fault(self) -> Fault | None:
        return self._fault

    def require_open(self) -> None:
        """`BrokerClosedError` after a fault."""
        if self._fault is not None:
            raise BrokerClosedError(
                f"the broker stopped: {self._fault.reason}; it must be opened again"
            ) from self._fault.error

    def stop(self, part: str, error: BaseException) -> None:
        """Take no more requests, because of this error of that part. Only the first counts."""
        needs_operator = isinstance(error, SyncFailedError | CorruptionError)
        fault = Fault(
            error, f"{part}: {text_of(error)}", Remedy.OPERATOR if needs_operator else Remedy.REOPEN
        )
        with self._lock:
            if self._fault is not None:
                return
            self._fault = fault
            listeners, self._listeners = self._listeners, []
        is_expected = isinstance(error, TidemillError)
        logger.critical("the broker stopped: %s", fault.reason, exc_info=None if is_expected else error)
        for listener in listeners:
            listener()

    def when_stopped(self, listener: Callable[[], object]) -> None:
        """Call `listener` once when there is a fault, from the thread that met it; now if there is one."""
        with self._lock:
            if self._fault is None:
                self._listeners.append(listener)
                return
        listener()

    def register(self, part: str) -> None:
        """Count the failures of that service from the start on."""
        with self._lock:
            self._counts[part] += 0

    def failed(self, part: str, error: BaseException) -> None:
        """A step of that service failed and will be tried again."""
        with self._lock:
            self._counts[part] += 1
            if isinstance(error, DiskFullError):
                return
            failure = self._failing.setdefault(part, _Failure(self._now_ms(), ""))
            failure.reason = text_of(error)

    def recovered(self, part: str) -> None:
        """A step of that service succeeded."""
        if part in self._failing:  # seldom: no lock for the many good steps
            with self._lock:
                self._failing.pop(part, None)

    def view(self) -> HealthView:
        with self._lock:
            state, reason = self._judged()
            return HealthView(state, reason, self._last_fault, dict(self._counts))

    def _judged(self) -> tuple[HealthState, str]:
        if self._fault is not None:
            return HealthState.FAILED, self._fault.reason
        now_ms = self._now_ms()
        reasons = [
            f"{part} has failed for {(now_ms - failure.since_ms) // 1000} s: {failure.reason}"
            for part, failure in self._failing.items()
            if now_ms - failure.since_ms >= FAILING_MS
        ]
        return (HealthState.FAILING, "; ".join(reasons)) if reasons else (HealthState.OK, "")


def text_of(error: BaseException) -> str:
    """What went wrong, in one line; unexpected errors with their kind."""
    words = " ".join(str(error).split())
    return words if isinstance(error, TidemillError) else f"unexpected {type(error).__name__}: {words}"
