"""How many connections the Flight port may have: whoever comes when there are enough is sent away.

Flight's server takes every connection and has no limit to set, and each holds a file of the broker's process.
So the port's connections are counted now and then among the process's own files, and those over the limit
are shut down, the latest to be seen first: whoever was here before stays, whatever it is doing.

Invariant: only connections to the Flight port are touched. Each is looked at through a duplicate, which stays
the same socket even if the server closes its own and the number is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

from tidemill.core.clock import stopwatch_s

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_REST = 20
_FILES = "/proc/self/fd"


class FlightConnections:
    """Keeps the connections of one port within a limit."""

    def __init__(self, port: int, connections_max: int) -> None:
        self._port = port
        self._connections_max = connections_max
        self._can_look = os.path.isdir(_FILES)
        self._seen: set[int] = set()  # sockets that may stay, by inode

    async def run(self) -> None:
        """Look for as long as the process listens. Nothing to do where files cannot be listed."""
        while self._can_look:
            begun_s = stopwatch_s()
            await asyncio.to_thread(self.look)
            # Where there are very many files a look takes long, and so comes less often.
            await asyncio.sleep(max(_LOOK_EVERY_S, _REST * (stopwatch_s() - begun_s)))

    def look(self) -> int:
        """Shut down what is over the limit; says how many those were."""
        if len(os.listdir(_FILES)) <= self._connections_max:
            return 0  # all files together are fewer; what has been seen only matters beyond that
        with contextlib.ExitStack() as stack:
            found = {os.fstat(one.fileno()).st_ino: stack.enter_context(one) for one in self._connections()}
            known = [inode for inode in found if inode in self._seen]
            stays = [*known, *(inode for inode in found if inode not in self._seen)][: self._connections_max]
            self._seen = set(stays)
            over = [one for inode, one in found.items() if inode not in self._seen]
            for one in over:
                with contextlib.suppress(OSError):  # it has gone by itself
                    one.shutdown(socket.SHUT_RDWR)
        if over:
            logger.warning(
                "%d Flight connections are open, %d more were closed; raise --max-connections if they are "
                "wanted",
                len(stays),
                len(over),
            )
        return len(over)

    def _connections(self) -> Iterator[socket.socket]:
        """Duplicates of the port's connections, in the order of their files."""
        for number in sorted(map(int, os.listdir(_FILES))):
            one = _socket_at(number)
            if one is not None and _is_connection_to(one, self._port):
                yield one
            elif one is not None:
                one.close()


def _socket_at(number: int) -> socket.socket | None:
    """A duplicate of the socket behind a number; None where it is something else, or closed meanwhile."""
    try:
        duplicate = os.dup(number)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


def _is_connection_to(one: socket.socket, port: int) -> bool:
    try:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        one.getpeername()
        return bool(one.getsockname()[1] == port)
    except OSError:  # it listens
        return False
