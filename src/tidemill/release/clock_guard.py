"""Watches the wall clock for leaps: a clock that is wrong for a moment would release early, for good.

Owns the judgement whether "now" may be believed. The boot clock never leaps, so the difference between the
two shows one. A leap forward of over a minute holds releases for ten seconds, which gives a mistaken time
server or operator the chance to put it right; then releases go on. A leap backward holds nothing: messages
simply are not due yet. Both are off when the clock is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAP_MS = 60_000
HOLD_MS = 10_000


@dataclass(slots=True)
class ClockGuard:
    """Remembers how wall and boot clock stood to each other."""

    is_simulated: bool
    leap_count: int = 0
    _difference_ms: int | None = None
    _hold_until_boot_ms: int = 0

    def is_holding(self, boot_ms: int) -> bool:
        """True while releases wait because of a leap."""
        return not self.is_simulated and boot_ms < self._hold_until_boot_ms

    def hold_ms(self, now_ms: int, boot_ms: int) -> int:
        """For how long releases must wait; 0 when the clock may be believed."""
        if self.is_simulated:
            return 0
        difference_ms = now_ms - boot_ms
        if self._difference_ms is not None and difference_ms - self._difference_ms > LEAP_MS:
            self.leap_count += 1
            self._hold_until_boot_ms = boot_ms + HOLD_MS
        self._difference_ms = difference_ms
        return max(0, self._hold_until_boot_ms - boot_ms)
