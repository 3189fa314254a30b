"""Kept connections for threads: one request at a time on each, taken from a pool and returned to it.

Owns the sockets. A connection on which anything failed is closed, never returned. A request that failed on a
kept connection before a byte of its answer came is *stale*: the broker had closed it meanwhile, and the
caller may send it again at once. A request that must not happen twice uses a new connection, where nothing is
stale: there the broker may as well have died with the work done and the answer not sent.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable

from tidemill.client.transport.endpoint import Answer, Endpoint, MalformedAnswerError, read_chunks, read_head

_FIRST_READ_BYTES = 16_384  # more would allocate each time
_READ_BYTES = 262_144
_TIME = struct.Struct("ll")  # seconds, microseconds
_KEPT_MAX = 64


class ConnectionLostError(Exception):
    """The connection broke before the answer was whole."""

    def __init__(self, reason: str, *, is_stale: bool, was_sent: bool = True, was_slow: bool = False) -> None:
        super().__init__(reason)
        self.is_stale = is_stale
        self.was_sent = was_sent
        self.was_slow = was_slow  # no answer came in time


class Connection:
    """One kept connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._patience = (-1.0, False)  # none was set yet
        self.is_fresh = True
        self.is_kept = True

    def exchange(self, head: bytes, content: bytes, timeout_s: float) -> Answer:
        """Send a request and read its answer."""
        patience = timeout_s, threading.get_ident() == threading.main_thread().ident
        if patience != self._patience:
            self._patience = patience
            _set_patience(self._socket, *patience)
        is_first, self.is_fresh = self.is_fresh, False
        data = b""
        try:
            self._socket.sendall(b"%b%d\r\n\r\n%b" % (head, len(content), content))
            data = self._socket.recv(_FIRST_READ_BYTES)
            return self._read(data)
        except (TimeoutError, BlockingIOError) as error:  # the latter is how the kernel reports it
            self.close()
            raise ConnectionLostError(
                f"no answer within {timeout_s:g} s", is_stale=False, was_slow=True
            ) from error
        except (OSError, EOFError, MalformedAnswerError) as error:
            self.close()
            is_stale = not is_first and not data
            raise ConnectionLostError(str(error) or type(error).__name__, is_stale=is_stale) from error
        except BaseException:  # an interrupt: the answer may still come, and has no caller
            self.close()
            raise

    def _read(self, data: bytes | bytearray) -> Answer:
        if not data:
            raise EOFError("the broker closed the connection")
        while (found := read_head(data)) is None:
            data = self._more(data)
        head, start = found
        self.is_kept = head.is_kept
        if head.length is None:
            while (content := read_chunks(data, start)) is None:
                data = self._more(data)
            return Answer(head.status, content, head.unix_socket)
        while len(data) < start + head.length:
            data = self._more(data)
        return Answer(head.status, bytes(data[start : start + head.length]), head.unix_socket)

    def _more(self, data: bytes | bytearray) -> bytearray:
        piece = self._socket.recv(_READ_BYTES)
        if not piece:
            raise EOFError("the broker closed the connection in the middle of an answer")
        gathered = data if isinstance(data, bytearray) else bytearray(data)
        gathered += piece
        return gathered

    def close(self) -> None:
        self.is_kept = False
        self._socket.close()


def connect(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """A new connection to the broker's port."""
    connected = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = endpoint.tls()
    return connected if context is None else context.wrap_socket(connected, server_hostname=endpoint.host)


def _set_patience(connected: socket.socket, seconds: float, is_main_thread: bool) -> None:
    """Let sending and receiving wait for so long at most.

    Kept by the kernel where that can be: Python's own time-outs cost a call of `poll`, and a turn at the
    interpreter, before each read and write. But the kernel's begin anew after a signal, and those come to the
    main thread.
    """
    if isinstance(connected, ssl.SSLSocket) or is_main_thread or seconds <= 0:
        connected.settimeout(seconds)
        return
    connected.settimeout(None)
    whole = int(seconds)
    value = _TIME.pack(whole, max(1, int((seconds - whole) * 1e6)))
    for what in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, what, value)


class Pool:
    """Connections to one place, made by `connect`. Thread-safe."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._lock = threading.Lock()  # protects _idle and _is_closed
        self._idle: list[Connection] = []
        self._is_closed = False

    def exchange(self, head: bytes, content: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        """One request on a kept connection, or a new one."""
        while True:
            connection = self._take() if is_repeatable else self._open()
            try:
                answer = connection.exchange(head, content, timeout_s)
            except ConnectionLostError as lost:
                if lost.is_stale:
                    continue
                raise
            self._give_back(connection)
            return answer

    def _take(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _open(self) -> Connection:
        try:
            return Connection(self._connect())
        except OSError as error:
            raise ConnectionLostError(error.strerror or str(error), is_stale=False, was_sent=False) from error

    def _give_back(self, connection: Connection) -> None:
        if connection.is_kept:
            with self._lock:
                if not self._is_closed and len(self._idle) < _KEPT_MAX:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked process: drop the connections; the parent's go on, and the broker notices nothing.

        Without the lock: its holder may not be in this process. The pool is not used any more.
        """
        for connection in self._idle:
            connection.close()
