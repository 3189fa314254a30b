"""Moving a simulated clock: forty days in seconds, each message still at its own millisecond, up to a point.

Owns the hops: from one moment at which something is due to the next, taking the services' steps by hand
between them. A moment costs a record and its sync; so that a million of them do not take a quarter of an
hour, an advance goes in hops of some length after the first thousands: never early, late by a hop at most.
The timer runner first hands over everything due on the way, so the number of its steps depends on how
many timers there are, not on how far the clock goes. At the end nothing is left that the timer forgot in a
minute that is over: the releaser sweeps in every step with a new minute.

While an operator holds releases or absorbing the clock moves all the same: what is held stays pending, and
goes when it is resumed.

Owns also the file pair `clock.0/1` (JSON, `now_ms`), so that a restart goes on where the clock was. A time is
written before the clock shows it. The writes of an advance are left to the kernel, which keeps them when the
process is killed; the last one is synced before the advance is answered.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tidemill.broker.control.timer_controller import TimerController
from tidemill.broker.loop import Service
from tidemill.core.clock import Clock, SimulatedClock
from tidemill.core.durations import format_time
from tidemill.core.errors import RequestError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.release.releaser import Releaser

# An advance is exact for so many moments; the hops after that are so many for what is left, or fewer.
_EXACT_HOPS = 5_000
_LOOK_AGAIN_S = 0.02


class SimulatedTime:
    """Takes the steps of a broker's services while its clock is moved."""

    def __init__(
        self, clock: Clock, timer_controller: TimerController, releaser: Releaser, services: list[Service]
    ) -> None:
        self._clock = clock
        self._timer = timer_controller
        self._releaser = releaser
        self._release, self._turn, self._keep = services

    def advance_to(self, until_ms: int) -> None:
        """Move the clock; returns when everything due by then is in its topic, or is held."""
        clock = self._clock
        if not isinstance(clock, SimulatedClock):
            raise RequestError("only a simulated clock can be moved; start with --clock simulated")
        now_ms = clock.now_ms()
        if until_ms < now_ms:
            raise RequestError(
                f"the clock cannot be moved back to {format_time(until_ms)}: it is {format_time(now_ms)}; "
                "name a later time"
            )
        self._timer.aim_at(until_ms)
        hops = 0
        while (now_ms := clock.now_ms()) < until_ms:
            self._turn_until_done()
            release_ms = self._release.run_once()
            if self._timer.repair:  # a sweep found that a shard has lost something, or a damaged file
                continue
            wakes = [self._timer.next_call_ms, release_ms, self._next_look_ms(now_ms)]
            next_ms = min((wake for wake in wakes if wake is not None), default=until_ms)
            hops += 1
            least_ms = now_ms + (1 if hops < _EXACT_HOPS else max(1, (until_ms - now_ms) // _EXACT_HOPS))
            clock.advance_to(min(until_ms, max(next_ms, least_ms)))
            self._keep.run_once()
        self._turn_until_done()
        self._reach(until_ms)
        while self._timer.repair:
            self._turn.run_once()
            self._reach(until_ms)
        clock.keep()

    def _next_look_ms(self, now_ms: int) -> int | None:
        """When to sweep next. What is held leaves a look behind that would always be overdue."""
        look_ms, holds = self._releaser.sweeper.next_look_ms(), self._timer.holds
        is_held = holds.holds_releases or holds.holds_absorbing
        return None if is_held and look_ms is not None and look_ms <= now_ms else look_ms

    def _reach(self, until_ms: int) -> None:
        """Have everything due by then handed over, and let it go."""
        self._turn.run_once(lambda _: self._timer.reach(until_ms, self._releaser))
        self._release.run_once()

    def _turn_until_done(self) -> None:
        """Return when no step is called for: all that is due within the lead is handed over."""
        self._turn.run_once()
        pause = threading.Event()
        while self._timer.is_called_for:
            if self._timer.is_turned_elsewhere:
                # Another process takes the step, in real time; nothing here can hurry it.
                pause.wait(_LOOK_AGAIN_S)
            self._turn.run_once()


CLOCK_NAME = "clock"
CLOCK_FORMAT = 1


def decode_clock(content: bytes) -> int:
    """The time that was kept, Unix ms."""
    return int(json.loads(content)["now_ms"])


class KeptClock(SimulatedClock):
    """Begins at the time that the directory kept, else at `now_ms`. Writes nothing before `keep`."""

    def __init__(self, disk: Disk, directory: Path, now_ms: int) -> None:
        self._checkpoint = Checkpoint(disk, directory, CLOCK_NAME, CLOCK_FORMAT, decode_clock)
        self._saving = threading.Lock()  # protects _checkpoint
        content = self._checkpoint.load_kept(
            "the simulated time is not known. Nothing was changed. Restore one of them from a backup, or "
            "remove both to begin with the real time"
        )
        super().__init__(now_ms if content is None else decode_clock(content))

    def advance_to(self, now_ms: int) -> None:
        with self._saving:
            self._save(max(now_ms, self.now_ms()), sync=False)
            super().advance_to(now_ms)

    def keep(self) -> None:
        with self._saving:
            self._save(self.now_ms(), sync=True)
            self._checkpoint.keep_twice()

    def _save(self, now_ms: int, *, sync: bool) -> None:
        self._checkpoint.save(json.dumps({"now_ms": now_ms}).encode(), sync=sync)
