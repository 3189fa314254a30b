"""Limits the number of concurrent Flight calls and the call rate of each client.

Owns both counts. A call holds a thread of the server while it lasts, so their number is bounded; further
calls are refused as busy before anything of them is read. Reports when nearly all are in use, so that idle
clients can be disconnected first (`flight_connections.py`). A client's calls, and the batches within them,
count against the token buckets shared with the other endpoints.
"""

from __future__ import annotations

import threading
from typing import Any

from tidemill.core.errors import TooManyRequestsError
from tidemill.server.flight.flight_traffic import caller_of
from tidemill.server.security.rates import Rates

CALLS_MAX = 256


class FlightLimits:
    """Lets calls in or refuses them. Thread-safe."""

    def __init__(self, rates: Rates | None = None, calls_max: int = CALLS_MAX) -> None:
        self._rates = rates
        self._calls_max = calls_max
        self._lock = threading.Lock()  # protects _calls
        self._calls = 0

    def enter(self) -> None:
        """A call begins; `TooManyRequestsError` if there are enough."""
        with self._lock:
            if self._calls >= self._calls_max:
                raise TooManyRequestsError(
                    f"call limit reached: {self._calls} Flight calls are in flight; retry later"
                )
            self._calls += 1

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1

    @property
    def crowd(self) -> int:
        """How many calls are above three quarters of the limit; silent clients are then disconnected."""
        return max(0, self._calls - self._calls_max * 3 // 4)

    def spend(self, user: str, context: Any) -> None:
        """Count a call or a batch of it; `TooManyRequestsError` if its client comes too often."""
        if self._rates is not None:
            address, _, _ = caller_of(context.peer()).partition(" ")
            self._rates.spend(f"user {user}" if user else f"address {address}")
