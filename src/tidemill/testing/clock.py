"""A clock for tests: it moves when a test moves it, in either direction."""

from __future__ import annotations

from tidemill.core.clock import SimulatedClock


class ManualClock(SimulatedClock):
    """`advance` lets time pass; `leap_ms` sets the wall clock wrong, as an administrator or NTP might."""

    def advance(self, ms: int) -> int:
        """Let `ms` pass on the wall and the boot clock; returns the new wall time."""
        assert ms >= 0, "time does not pass backwards; to set the wall clock back use leap_ms"
        with self._changed:
            self._now_ms += ms
            self._boot_ms += ms
            self._changed.notify_all()
            return self._now_ms

    def leap_ms(self, ms: int) -> int:
        """Move only the wall clock, forward or (negative) backward; returns the new wall time."""
        with self._changed:
            self._now_ms += ms
            self._changed.notify_all()
            return self._now_ms
