"""The call rate of each client: a token bucket for each, filled at a steady rate.

Owns the buckets. A client may save up two seconds' worth and then has the plain rate. A bounded number of
clients is remembered; the one unused for longest is forgotten, and starts again with a full bucket.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import TooManyRequestsError

_BURST_SECONDS = 2.0
_CLIENTS_MAX = 10_000


class Rates:
    """Token buckets by client. Thread-safe: one for all endpoints of a process."""

    def __init__(
        self, per_second: float, *, clients_max: int = _CLIENTS_MAX, now_s: Callable[[], float] = stopwatch_s
    ) -> None:
        self._per_second = per_second
        self._burst = max(1.0, per_second * _BURST_SECONDS)
        self._clients_max = clients_max
        self._now_s = now_s
        self._lock = threading.Lock()  # protects _buckets
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when counted

    def __len__(self) -> int:
        return len(self._buckets)

    def spend(self, client: str) -> None:
        """Take a token; `TooManyRequestsError` if there is none."""
        with self._lock:
            now_s = self._now_s()
            tokens = self._tokens(client, now_s)
            is_within = tokens >= 1
            self._buckets[client] = (tokens - 1 if is_within else tokens, now_s)
            self._buckets.move_to_end(client)
            if len(self._buckets) > self._clients_max:
                self._buckets.popitem(last=False)
        if not is_within:
            raise self._refusal(client)

    def require(self, client: str) -> None:
        """Return if there is a token, and leave it; `TooManyRequestsError` if there is none."""
        with self._lock:
            is_within = self._tokens(client, self._now_s()) >= 1
        if not is_within:
            raise self._refusal(client)

    def _tokens(self, client: str, now_s: float) -> float:
        tokens, counted_s = self._buckets.get(client, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - counted_s) * self._per_second)

    def _refusal(self, client: str) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"more than {self._per_second:g} calls a second from {client}; slow down and try again"
        )
