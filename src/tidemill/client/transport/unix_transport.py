"""The transport to a broker on this machine: sends use its Unix socket, once an answer has named it.

Owns what a client knows of that socket. Everything else uses the TCP port, and so do sends when the socket is
missing, closed, or belongs to another user: a process that runs neither as root nor as the same user may only
imitate the broker, and would be given a token. Nor is it used through a proxy, which may lead to another
broker tomorrow: the name contains the port on which the broker itself listens. A socket that failed is not
tried for a while, or until the broker names another.

Changing the transport after a lost answer stores nothing twice: sends carry ids made by the client.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
import threading

from tidemill.client.transport.async_connection import AsyncPool, Streams
from tidemill.client.transport.connection import ConnectionLostError, Pool
from tidemill.client.transport.endpoint import Answer, Endpoint
from tidemill.core.addresses import is_this_machine, unix_socket_address
from tidemill.core.clock import stopwatch_s
from tidemill.core.limits import LOCAL_REQUEST_BYTES_MAX

_RETRY_AFTER_S = 30.0
_NAME = re.compile(r"tidemill-([0-9]{1,5})-[0-9a-f]{1,64}")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_ROOT = 0


class KnownSocket:
    """The socket last announced, and whether to try it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_near = not endpoint.is_tls and is_this_machine(endpoint.host)
        self._port = endpoint.port
        self._name = ""
        self._not_before_s = 0.0

    def is_new(self, name: str) -> bool:
        """Whether to use a socket of that name from now on."""
        found = _NAME.fullmatch(name) if name and self._is_near else None
        if found is None or int(found[1]) != self._port:
            return False
        if name == self._name and stopwatch_s() < self._not_before_s:
            return False
        self._name = name
        return True

    def mark_failed(self) -> None:
        self._not_before_s = stopwatch_s() + _RETRY_AFTER_S


class UnixTransport:
    """Carries sends. Thread-safe."""

    def __init__(self, endpoint: Endpoint, port: Pool, connect_s: float) -> None:
        self._port = port
        self._connect_s = connect_s
        self._lock = threading.Lock()  # protects all below
        self._socket = KnownSocket(endpoint)
        self._pool: Pool | None = None
        self._is_closed = False

    def exchange(self, head: bytes, content: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        """Send one request by the socket if it is known, else by the port."""
        pool = self._pool
        if pool is not None and len(content) <= LOCAL_REQUEST_BYTES_MAX:
            try:
                return pool.exchange(head, content, timeout_s, is_repeatable=is_repeatable)
            except ConnectionLostError as lost:
                self._leave(pool)
                if lost.was_slow:
                    raise  # the caller has waited long enough
        answer = self._port.exchange(head, content, timeout_s, is_repeatable=is_repeatable)
        if answer.unix_socket and self._pool is None:
            self._use(answer.unix_socket)
        return answer

    def _use(self, name: str) -> None:
        with self._lock:
            if self._pool is None and not self._is_closed and self._socket.is_new(name):
                self._pool = Pool(lambda: _connect(name, self._connect_s))

    def _leave(self, pool: Pool) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
                self._socket.mark_failed()
        pool.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def leave_to_parent(self) -> None:
        """In a forked process: as in `Pool`."""
        if self._pool is not None:
            self._pool.leave_to_parent()


class AsyncUnixTransport:
    """The same for tasks, on one event loop."""

    def __init__(self, endpoint: Endpoint, port: AsyncPool) -> None:
        self._port = port
        self._socket = KnownSocket(endpoint)
        self._pool: AsyncPool | None = None

    async def exchange(self, head: bytes, content: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        pool = self._pool
        if pool is not None and len(content) <= LOCAL_REQUEST_BYTES_MAX:
            try:
                return await pool.exchange(head, content, timeout_s, is_repeatable=is_repeatable)
            except ConnectionLostError as lost:
                self._leave(pool)
                if lost.was_slow:
                    raise  # the caller has waited long enough
        answer = await self._port.exchange(head, content, timeout_s, is_repeatable=is_repeatable)
        name = answer.unix_socket
        if self._pool is None and self._socket.is_new(name):
            self._pool = AsyncPool(lambda: _connect_async(name))
        return answer

    def _leave(self, pool: AsyncPool) -> None:
        if self._pool is pool:
            self._pool = None
            self._socket.mark_failed()
        pool.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def leave_to_parent(self) -> None:
        """In a forked process: as in `AsyncPool`."""
        if self._pool is not None:
            self._pool.leave_to_parent()


def _connect(name: str, timeout_s: float) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(unix_socket_address(name))
        _require_trusted(connected)
    except OSError:
        connected.close()
        raise
    return connected


async def _connect_async(name: str) -> Streams:
    reader, writer = await asyncio.open_unix_connection(unix_socket_address(name))
    try:
        _require_trusted(writer.get_extra_info("socket"))
    except OSError:
        writer.close()
        raise
    return reader, writer


def _require_trusted(connected: socket.socket) -> None:
    """Return if the listening process is root or the same user; `PermissionError` if not."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    if user not in (_ROOT, os.geteuid()):
        raise PermissionError("the Unix socket belongs to another user")
