"""Accounts for Flight traffic by client: bytes received, unread response bytes, and calls that wait.

Flight gathers a message completely, however long it is. What was gathered and handed over is reported here by
the server; `flight_connections.py` compares it with what the sockets have received, and the difference is in
memory. In the other direction each stream has one batch with the server until the client has read it; a
client that never reads keeps it there. So a stream reserves bytes before a batch is made, waits in order
while too many are unread, and gives up when that lasts; the clients that have not read for longest are
reported, to be disconnected. A call in progress either has the server at work or waits for its client;
clients that keep calls waiting are reported too.

Invariant: unread bytes and batches being made never exceed the bound together, counting `BATCH_BYTES` for a
batch that is being made; a single batch may, when there is nothing else.

A client is the address and port of its connection, written as `caller_of` does.

`FlightLimits` bounds the number of calls: each holds a thread of the server while it lasts. Further calls are
refused before anything of them is read. It reports when nearly all are in use, so that idle clients can be
disconnected first. Calls, and the batches within them, count against the rates shared with other endpoints.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.limits import KIB, MIB
from tidemill.server.security.rates import Rates

CALLS_MAX = 256
OUT_BYTES_MAX = 256 * MIB
# The size of a batch that is being made is unknown: some 16 MiB of bodies, and the columns beside them.
BATCH_BYTES = 32 * MIB
# Longer than clients that do not read are tolerated, so that disconnecting them frees bytes for others.
_WAIT_S = 25.0
# What comes along with a message: its head, its frames, and the signs of life of a caller that reads.
_OVERHEAD_BYTES = 4 * KIB
_KEEPALIVE_SHARE = 1024
_UNREAD_SECONDS_MAX = 10.0
_PEER = re.compile(r"ipv[46]:(.+):(\d+)")


class Handed(NamedTuple):
    """What changed since the last look: bytes handed over, and streams under way, by caller."""

    sizes: dict[str, int]
    streams: dict[str, int]


class Waits(NamedTuple):
    """How the calls under way stand."""

    kept: dict[str, int]  # by caller: calls that have waited for it too long; the longest wait first
    working: set[str]  # callers with a call that the server is at work on


class FlightTraffic:
    """Counts in both directions. Thread-safe."""

    def __init__(self, out_bytes_max: int = OUT_BYTES_MAX, *, wait_s: float = _WAIT_S) -> None:
        self._out_bytes_max = out_bytes_max
        self.wait_s = wait_s  # how long a stream waits for free bytes
        self._lock = threading.Lock()  # protects all below
        self._sizes: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._waits: dict[object, tuple[str, float]] = {}  # caller, since when; the longest first
        self._out: dict[object, tuple[str, int, float]] = {}  # caller, size, since when; the longest first
        self.out_bytes = 0
        self._making = 0
        self._turns: deque[object] = deque()  # of the streams that wait for free bytes, in order
        self._has_space = threading.Condition(self._lock)

    def handed(self, caller: str, size: int) -> None:
        """A message of a caller was gathered, handed over and dealt with."""
        with self._lock:
            self._sizes[caller] += size + _OVERHEAD_BYTES

    @contextmanager
    def handing(self, caller: str, size: int) -> Iterator[None]:
        """A message is dealt with, and stays in memory until it is."""
        try:
            yield
        finally:
            self.handed(caller, size)

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """A stream of messages from a caller is under way."""
        with self.call(caller), self._counted(self._streams, caller):
            yield

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """A call is under way: the server is at work on it, unless it is `waiting`."""
        with self._counted(self._calls, caller):
            yield

    @contextmanager
    def waiting(self, caller: str) -> Iterator[None]:
        """A call can go on only when its caller sends or reads something."""
        wait = object()
        with self._lock:
            self._waits[wait] = (caller, stopwatch_s())
        try:
            yield
        finally:
            with self._lock:
                del self._waits[wait]

    @contextmanager
    def _counted(self, counts: Counter[str], caller: str) -> Iterator[None]:
        with self._lock:
            counts[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                counts[caller] -= 1
                if not counts[caller]:
                    del counts[caller]

    def waits(self, now_s: float, patience_s: float) -> Waits:
        """Clients that kept calls waiting for longer than `patience_s`, and those with work in progress."""
        with self._lock:
            kept = Counter(caller for caller, since_s in self._waits.values() if now_s - since_s > patience_s)
            waiting = Counter(caller for caller, _ in self._waits.values())
            return Waits(dict(kept), {caller for caller, n in self._calls.items() if n > waiting[caller]})

    def take(self) -> Handed:
        """What was handed over since the last call."""
        with self._lock:
            sizes, self._sizes = self._sizes, Counter()
            return Handed(sizes, dict(self._streams))

    # -- out --------------------------------------------------------------------------------------

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make a batch: begins when bytes are free, `TooManyRequestsError` when none were for `wait_s`."""
        turn = object()
        with self._has_space:
            self._turns.append(turn)
            try:
                if not self._has_space.wait_for(lambda: self._is_turn(turn), self.wait_s):
                    waiting = f"{self.out_bytes} response bytes wait for Flight clients that do not read"
                    raise TooManyRequestsError(f"{waiting}; retry later")
                self._making += 1
            finally:
                self._turns.remove(turn)
                self._has_space.notify_all()
        try:
            yield
        finally:
            with self._has_space:
                self._making -= 1
                self._has_space.notify_all()

    def _is_turn(self, turn: object) -> bool:
        taken = self.out_bytes + self._making * BATCH_BYTES
        return self._turns[0] is turn and (not taken or taken + BATCH_BYTES <= self._out_bytes_max)

    @contextmanager
    def out(self, caller: str, size: int) -> Iterator[None]:
        """A batch is in the server's hands."""
        batch = object()
        with self._lock:
            self._out[batch] = (caller, size, stopwatch_s())
            self.out_bytes += size
        try:
            with self.waiting(caller):
                yield
        finally:
            with self._lock:
                del self._out[batch]
                self.out_bytes -= size
                self._has_space.notify_all()
            self.handed(caller, size // _KEEPALIVE_SHARE)

    def not_reading(self, now_s: float) -> set[str]:
        """Clients to disconnect: others wait for free bytes, and these have not read theirs for longest."""
        found: set[str] = set()
        with self._lock:
            wanted = (self._making + len(self._turns)) * BATCH_BYTES
            over = self.out_bytes + wanted - self._out_bytes_max
            for caller, size, since_s in self._out.values():
                if over <= 0 or now_s - since_s < _UNREAD_SECONDS_MAX:
                    break
                found.add(caller)
                over -= size
        return found


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
    def excess(self) -> int:
        """How many calls are above three quarters of the limit; silent clients are then disconnected."""
        return max(0, self._calls - self._calls_max * 3 // 4)

    def spend(self, user: str, context: Any) -> None:
        """Count a call or a batch of it; `TooManyRequestsError` if its client comes too often."""
        if self._rates is not None:
            address, _, _ = caller_of(context.peer()).partition(" ")
            self._rates.spend(f"user {user}" if user else f"address {address}")


def caller_of(peer: str) -> str:
    """The caller behind what gRPC calls a peer: `ipv4:10.0.0.7:5123`, `ipv6:%5B::1%5D:5123`."""
    found = _PEER.fullmatch(unquote(peer))
    return caller_at(found[1].strip("[]"), int(found[2])) if found else peer


def caller_at(host: str, port: int) -> str:
    """The caller at an address; one of IPv4 is the same whichever socket it came through."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return f"{host} {port}"
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address} {port}"
