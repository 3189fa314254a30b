"""Hold and resume: the two switches an operator has for the whole broker.

Owns the order of a change. A hold is in force, and no step that began before it is under way in this process,
when it is answered; and it is synced by then. A resume is synced before anything acts on it. So a crash
leaves the state that was answered last, or the one that was asked for.

Leaves to others: the state and its file (`holds.py`), and acting on it: the releaser takes nothing that is
due while releases are held, the timer's target names a fixed end of the entries while absorbing is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidemill.broker.control.holds import Holds, HoldsState
from tidemill.broker.control.timer_controller import TimerController
from tidemill.broker.health import Health
from tidemill.broker.loop import Service
from tidemill.core.errors import SyncFailedError
from tidemill.core.holds import Held, held_named

logger = logging.getLogger(__name__)


class Switches:
    """Changes what is held. Thread-safe."""

    def __init__(
        self,
        holds: Holds,
        timer_controller: TimerController,
        health: Health,
        now_ms: Callable[[], int],
        *,
        release_service: Service,
        turn_service: Service,
    ) -> None:
        self._holds = holds
        self._timer = timer_controller
        self._health = health
        self._now_ms = now_ms
        self._services = {Held.RELEASES: release_service, Held.ABSORBING: turn_service}
        self._lock = threading.Lock()  # one change at a time

    @property
    def state(self) -> HoldsState:
        return self._holds.state

    def hold(self, name: str) -> HoldsState:
        """Hold `releases` or `absorbing`; held already is no error. Durable when this returns."""
        what = held_named(name)
        with self._lock:
            if self.state.since_ms(what) is None:
                self._hold(what)
            return self.state

    def resume(self, name: str) -> HoldsState:
        """End a hold; where there is none is no error. Durable when this returns."""
        what = held_named(name)
        with self._lock:
            if self.state.since_ms(what) is not None:
                state = self.state.with_hold(what, None)
                self._save(state)
                self._holds.state = state
                logger.warning("%s are no longer held", what)
                for service in self._services.values():
                    service.wake()
            return self.state

    def _hold(self, what: Held) -> None:
        before = self.state
        if what is Held.RELEASES:  # a long step ends early when it sees this
            self._holds.state = before.with_hold(what, self._now_ms())
        try:
            # Within the service's turn: none of its steps is under way, and a full disk gives up its spare.
            self._services[what].run_once(lambda now_ms: self._hold_now(what, now_ms))
        except BaseException:
            self._holds.state = before
            self._services[what].wake()
            raise
        logger.warning("%s: held until `tidemill resume %s`", what, what)

    def _hold_now(self, what: Held, now_ms: int) -> int:
        below_seq = self._timer.absorbed_end if what is Held.ABSORBING else self.state.absorb_below_seq
        state = self.state.with_hold(what, now_ms, below_seq)
        self._save(state)
        self._holds.state = state
        if what is Held.ABSORBING:
            self._timer.write_target(now_ms)
        return now_ms

    def _save(self, state: HoldsState) -> None:
        try:
            self._holds.save(state)
        except SyncFailedError as error:  # it is not known what is on disk
            self._health.stop("holds", error)
            raise
