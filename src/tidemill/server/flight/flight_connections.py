"""Limits on the connections of the Flight port: their number, the unread bytes of each, and idle time.

Flight's server accepts every connection and gathers every message completely before application code sees it,
and it has no setting for either. So the port's connections are read many times a second from the process's
own file descriptors, and the operating system reports what each has received. Received bytes less what was
handed over (`flight_traffic.py`) are in memory. Closed are

- connections over the limit, the newest first;
- a connection with more in memory than a message of the largest size for each of its streams;
- while all of them together hold too much, the one with most;
- while too many response bytes are unread, those of clients that do not read;
- a connection from which nothing has arrived for a quarter of an hour;
- while nearly all calls are in use (`flight_traffic.py`), the connections of clients that keep calls waiting
  for ten seconds, the longest wait first, and after them those from which nothing arrived for as long, or
  less than the minimum rate of an incomplete message (`body_budget.py`), and for which the server does no
  work: a call whose first message is incomplete is not visible here.

The bytes of an aborted stream count as if they were still held: a client that aborts many large streams on
one connection is closed and reconnects.

A scan costs a few microseconds for each open file, and the pause before the next is ten times as long. What
arrives between two scans is over the limit unseen: some ten MiB from one client.

Invariant: only connections to the Flight port are touched. What is shut down is a duplicate, which stays the
same socket even if the server closes its own and the number is reused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import struct
import threading
from dataclasses import dataclass

from tidemill.core.clock import stopwatch_s
from tidemill.core.limits import MIB
from tidemill.server.body_budget import RATE_BYTES, RATE_SECONDS
from tidemill.server.flight.flight_traffic import FlightLimits, FlightTraffic, Handed, caller_at

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 * MIB
GATHERED_BYTES_MAX = 512 * MIB
SILENCE_MS_MAX = 15 * 60_000
PATIENCE_S = RATE_SECONDS
_LOOK_EVERY_S = 0.05
_IDLE_LOOK_EVERY_S = 0.1
_REST = 10
_FILES = "/proc/self/fd"
# Of the kernel's `struct tcp_info`: milliseconds since data came, and all bytes that ever came.
_INFO_BYTES = 136
_SILENT_MS = struct.Struct("=I")
_SILENT_MS_AT = 52
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection to the port, or any other socket of the process (`caller` is empty)."""

    inode: int  # what the system calls the socket, while it is open
    family: int
    caller: str
    received: int = 0
    handed: int = 0  # bytes of it that were handed over, never more than were received
    silent_ms: int = 0
    counted: int = 0  # bytes received when the minimum rate was last kept
    counted_s: float | None = None  # and when that was

    def idle_s(self, now_s: float) -> float:
        """For how long it has sent nothing, or too little of a message that is not whole."""
        slow_s = 0.0 if self.counted_s is None or not self.gathered else now_s - self.counted_s
        return max(self.silent_ms / 1000, slow_s)

    def count(self, now_s: float) -> None:
        if self.counted_s is None or self.received - self.counted >= RATE_BYTES:
            self.counted, self.counted_s = self.received, now_s

    @property
    def gathered(self) -> int:
        """What of it lies in memory."""
        return self.received - self.handed


class FlightConnections:
    """Keeps the connections of one port within their limits, by a thread of its own."""

    def __init__(
        self,
        port: int,
        connections_max: int,
        traffic: FlightTraffic | None = None,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        gathered_bytes_max: int = GATHERED_BYTES_MAX,
        silence_ms_max: int = SILENCE_MS_MAX,
        limits: FlightLimits | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._port = port
        self._connections_max = connections_max
        self._traffic = traffic or FlightTraffic()
        self._message_bytes_max = message_bytes_max
        self._gathered_bytes_max = gathered_bytes_max
        self._silence_ms_max = silence_ms_max
        self._limits = limits or FlightLimits()
        self._patience_s = patience_s
        self._sockets: dict[int, _Connection] = {}  # by number, the first to be seen first
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-flight-watch", daemon=True)

    def start(self) -> None:
        """Look for as long as the process listens. Nothing to do where files cannot be listed."""
        if os.path.isdir(_FILES):
            self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def shut_all(self) -> int:
        """Shut down every connection of the port, when it was stopped; returns how many there were."""
        if self._thread.is_alive():
            self._thread.join()
        self._find()
        return self._shut([(number, one) for number, one in self._sockets.items() if one.caller], "")

    def _run(self) -> None:
        pause_s = 0.0
        while not self._is_over.wait(pause_s):
            begun_s = stopwatch_s()
            before = self._received()
            self.look()
            every_s = _LOOK_EVERY_S if self._received() != before else _IDLE_LOOK_EVERY_S
            pause_s = max(every_s, _REST * (stopwatch_s() - begun_s))

    def _received(self) -> int:
        return sum(one.received for one in self._sockets.values())

    # -- looking ----------------------------------------------------------------------------------

    def look(self, now_s: float | None = None) -> int:
        """Shut down connections over a limit; returns how many."""
        now_s = stopwatch_s() if now_s is None else now_s
        self._find()
        found = [(number, one) for number, one in self._sockets.items() if one.caller]
        handed = self._traffic.take()
        kept, over = found[: self._connections_max], found[self._connections_max :]
        for number, one in kept:
            _ask(number, one)
            one.count(now_s)
            one.handed = min(one.received, one.handed + handed.sizes.get(one.caller, 0))
        large = self._large([one for _, one in kept], handed)
        not_reading = self._traffic.not_reading(now_s)
        faults = (
            (over, "more than --max-connections were open; raise it if needed"),
            (
                [pair for pair in kept if pair[1] in large],
                "too many request bytes at once; send smaller batches",
            ),
            (
                [pair for pair in kept if pair[1].caller in not_reading],
                "the clients did not read their responses",
            ),
            ([pair for pair in kept if pair[1].silent_ms > self._silence_ms_max], ""),
            (
                self._silent(kept, now_s),
                "the clients sent too slowly while nearly all call slots were in use",
            ),
        )
        return sum(self._shut(found, why) for found, why in faults)

    def _find(self) -> None:
        """Bring the list of sockets up to date."""
        inodes = {}
        for name in os.listdir(_FILES):
            try:
                status = os.fstat(number := int(name))
            except OSError:  # closed meanwhile
                continue
            if stat.S_ISSOCK(status.st_mode):
                inodes[number] = status.st_ino
        for number in [n for n, one in self._sockets.items() if inodes.get(n) != one.inode]:
            del self._sockets[number]
        for number in sorted(inodes.keys() - self._sockets.keys()):
            self._sockets[number] = self._seen_first(number, inodes[number])

    def _seen_first(self, number: int, inode: int) -> _Connection:
        try:
            with socket.socket(fileno=os.dup(number)) as one:
                if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                    host, port, *_ = one.getpeername()
                    if one.getsockname()[1] == self._port:
                        return _Connection(inode, one.family, caller_at(host, port))
        except OSError:  # it listens, or is gone
            pass
        return _Connection(inode, 0, "")

    def _large(self, kept: list[_Connection], handed: Handed) -> set[_Connection]:
        """Connections that have too much in memory, each for itself or the largest of all together."""
        large: set[_Connection] = set()
        total = 0
        for one in sorted(kept, key=lambda one: one.gathered):
            total += one.gathered
            allowed = self._message_bytes_max * max(1, handed.streams.get(one.caller, 0))
            if one.gathered > allowed or total > self._gathered_bytes_max:
                large.add(one)
                total -= one.gathered
        return large

    def _silent(self, kept: list[tuple[int, _Connection]], now_s: float) -> list[tuple[int, _Connection]]:
        """Connections that must give way to others, no more than are needed for that."""
        excess = self._limits.excess
        if not excess:
            return []
        waits = self._traffic.waits(now_s, self._patience_s)
        order = {caller: place for place, caller in enumerate(waits.kept)}
        keeping = sorted((p for p in kept if p[1].caller in order), key=lambda p: order[p[1].caller])
        others = [
            pair
            for pair in sorted(kept, key=lambda pair: pair[1].idle_s(now_s), reverse=True)
            if pair[1].idle_s(now_s) > self._patience_s
            and pair[1].caller not in waits.working
            and pair[1].caller not in order
        ]
        found: list[tuple[int, _Connection]] = []
        for number, one in (*keeping, *others):
            if excess <= 0:
                break
            found.append((number, one))
            excess -= waits.kept.get(one.caller, 1)
        return found

    # -- shutting ---------------------------------------------------------------------------------

    def _shut(self, found: list[tuple[int, _Connection]], why: str) -> int:
        """Shut connections down; returns how many had not been shut before."""
        alive = [(number, one) for number, one in found if self._sockets[number] is one]
        for number, one in alive:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as duplicate:
                if os.fstat(duplicate.fileno()).st_ino == one.inode:
                    duplicate.shutdown(socket.SHUT_RDWR)
            # Until the server has closed its own end, the socket is there and nothing to us.
            self._sockets[number] = _Connection(one.inode, 0, "")
        if alive and why:
            logger.warning("%d Flight connections were closed: %s", len(alive), why)
        return len(alive)


def _ask(number: int, one: _Connection) -> None:
    """Query the system about a connection, by file number; a number reused meanwhile does no harm."""
    with contextlib.suppress(OSError):
        borrowed = socket.socket(one.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=number)
        try:
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        finally:
            borrowed.detach()
        if len(info) == _INFO_BYTES:
            (one.received,) = _RECEIVED.unpack_from(info, _RECEIVED_AT)
            (one.silent_ms,) = _SILENT_MS.unpack_from(info, _SILENT_MS_AT)
