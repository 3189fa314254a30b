"""What time it is. The only module that asks the operating system.

Owns two readings: the *wall* clock in Unix milliseconds, by which messages fall due, and the *boot*
clock, which never jumps and therefore shows whether the wall clock leapt.
Everything else takes the time as an argument or holds a `Clock`.

Invariant: `boot_ms` never decreases within one boot of the machine.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time that a loop can also wait on."""

    @property
    def is_simulated(self) -> bool:
        """True when time moves only by `SimulatedClock.advance_to`."""
        ...

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since some fixed point; counts suspended time and never leaps."""
        ...

    def wait(self, wake: threading.Event, until_ms: int | None) -> None:
        """Block until `wake` is set or the wall clock reaches `until_ms` (None: only `wake`)."""
        ...

    def doze(self, until_ms: int) -> None:
        """Return at the very moment the wall clock reads `until_ms`, which is a millisecond or two away.

        Returns before it if the clock is set back meanwhile: look at the clock afterwards.
        """
        ...


# A wall clock may be set back while a loop waits; looking again this often bounds what that costs.
LONGEST_WAIT_MS = 1_000
_LONGEST_WAIT_S = LONGEST_WAIT_MS / 1_000
# A sleeping thread wakes this late; the rest of a doze is spent giving way to other threads.
_OVERSLEEP_NS = 100_000
_LONGEST_DOZE_NS = 10_000_000


class SystemClock:
    """The machine's clock."""

    is_simulated = False

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wait(self, wake: threading.Event, until_ms: int | None) -> None:
        if until_ms is None:
            wake.wait(_LONGEST_WAIT_S)
            return
        left_s = (until_ms * 1_000_000 - time.time_ns()) / 1e9
        if left_s > 0:
            wake.wait(min(left_s, _LONGEST_WAIT_S))

    def doze(self, until_ms: int) -> None:
        until_ns = until_ms * 1_000_000
        while 0 < (left_ns := until_ns - time.time_ns()) <= _LONGEST_DOZE_NS:
            time.sleep(max(0, left_ns - _OVERSLEEP_NS) / 1e9)


class SimulatedClock:
    """A clock that moves only by `advance_to`. Forty days pass in one call."""

    is_simulated = True

    def __init__(self, now_ms: int) -> None:
        self._changed = threading.Condition()  # protects the two readings
        self._now_ms = now_ms
        self._boot_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def advance_to(self, now_ms: int) -> None:
        """Move forward to `now_ms`; an earlier time is ignored."""
        with self._changed:
            step_ms = max(0, now_ms - self._now_ms)
            self._now_ms += step_ms
            self._boot_ms += step_ms
            self._changed.notify_all()

    def keep(self) -> None:
        """Make the present time survive the process, where the clock keeps it; this one does not."""

    def wait(self, wake: threading.Event, until_ms: int | None) -> None:
        # Simulated time cannot pass while all threads wait, so only `wake` ends the wait;
        # the caller that advances the clock sets it.
        if until_ms is None or until_ms > self._now_ms:
            wake.wait(_LONGEST_WAIT_S)

    def doze(self, until_ms: int) -> None:
        """Return at once: no other thread moves the clock during a sleep."""


def machine_ms() -> int:
    """The machine's own boot clock, whatever clock the broker follows: how long other processes take."""
    return SystemClock().boot_ms()


def stopwatch_s() -> float:
    """Seconds on a high-resolution counter, for measuring how long something took."""
    return time.perf_counter()


def wall_s() -> float:
    """The wall clock in seconds with all its digits, for measuring how late something was."""
    return time.time()
