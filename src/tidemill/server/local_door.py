"""The short way in for clients on this machine: a Unix socket that takes `POST /v1/send-batch` and no more.

Between a request on the port and the desk that serves it lie a proxy, an event loop and a pool of threads,
each of which must wake up first. Here a thread for each connection reads a request, has it served and
answers: the same bytes, the same rules, half the wait. Its name is made of chance, told in answers over the
port, and in no directory; whoever may not connect goes on by the port.

Invariants: a caller is asked who it is as at the port, with every request; what is gathered is bounded by the
connections times the size of a request; a request that has begun must be whole in time.
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import threading

from tidemill.core.addresses import local_door_address
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import TidemillError
from tidemill.core.limits import LOCAL_REQUEST_BYTES_MAX
from tidemill.server.admin_errors import error_bytes, refusal_bytes, status_of
from tidemill.server.batch_desk import PATH, BatchDesk
from tidemill.server.guard import Guard

logger = logging.getLogger(__name__)

_CONNECTIONS_MAX = 64
_SILENT_SECONDS = 60  # a kept connection may be silent for so long
_REQUEST_SECONDS = 10.0  # a request that has begun is whole by then
_UNREAD_SECONDS = 10  # an answer is taken by then
_PAUSE_SECONDS = 1.0
_HEAD_BYTES_MAX = 16_384
_READ_BYTES = 1 << 18
_HEAD_END = b"\r\n\r\n"
_REQUEST_LINE = f"POST {PATH} HTTP/1.1".encode()
_PEER = "127.0.0.1"  # whoever comes this way could as well come from there


class _Refused(Exception):
    """What came is no request of ours; the connection ends with this answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.content = refusal_bytes(code, message)


class LocalDoor:
    """Listens until it is closed; a thread for each connection."""

    def __init__(
        self, desk: BatchDesk, guard: Guard, port: int, *, connections_max: int = _CONNECTIONS_MAX
    ) -> None:
        self._desk = desk
        self._guard = guard
        self._connections_max = connections_max
        self._closing = threading.Event()
        self._lock = threading.Lock()  # protects _threads
        self._threads: dict[socket.socket, threading.Thread] = {}
        # With the port: who has come to another one has come through a proxy, and shall not go round it.
        self.name = f"tidemill-{port}-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(local_door_address(self.name))
        self._listener.listen(connections_max)
        threading.Thread(target=self._accept, name="local-door", daemon=True).start()

    def close(self, patience_s: float) -> None:
        """Take no more requests; return when those under way are answered, or patience is at its end."""
        with self._lock:
            self._closing.set()
            threads = dict(self._threads)
        _shut(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        for connection in threads:
            _shut(connection, socket.SHUT_RD)
        until_s = stopwatch_s() + patience_s
        for thread in threads.values():
            thread.join(max(0.0, until_s - stopwatch_s()))

    # -- connections ------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closing.is_set():
                    return
                logger.warning("the local door takes nobody: %s", error.strerror)
                self._closing.wait(_PAUSE_SECONDS)  # too many open files, perhaps: that passes
                continue
            with self._lock:
                if self._closing.is_set() or len(self._threads) >= self._connections_max:
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(connection,), name="local-caller", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the system has no more threads for us
                    connection.close()
                    continue
                self._threads[connection] = thread

    def _serve(self, connection: socket.socket) -> None:
        """Answer what comes on one connection until it ends."""
        try:
            _set_patience(connection, socket.SO_SNDTIMEO, _UNREAD_SECONDS)
            _set_patience(connection, socket.SO_RCVTIMEO, _SILENT_SECONDS)
            rest = b""
            while not self._closing.is_set():
                found = _read_request(connection, rest)
                if found is None:
                    return
                authorization, content, rest = found
                status, answer = self._answered(authorization, content)
                connection.sendall(_answer(status, answer))
        except _Refused as refused:
            _say_farewell(connection, refused)
        except OSError:
            return  # gone, silent for too long, or it does not read
        finally:
            with self._lock:
                self._threads.pop(connection, None)
            connection.close()

    def _answered(self, authorization: str, content: bytes) -> tuple[int, bytes]:
        try:
            self._guard.admit_http(authorization, _PEER)
        except TidemillError as error:
            return status_of(error), error_bytes(error)
        return self._desk.answered(content)


# -- requests and answers -------------------------------------------------------------------------


def _read_request(connection: socket.socket, data: bytes) -> tuple[str, bytes, bytes] | None:
    """Authorization and content of the next request, and what came behind it; None at the end."""
    data = data or connection.recv(_READ_BYTES)
    if not data:
        return None
    until_s = stopwatch_s() + _REQUEST_SECONDS
    while (head_end := data.find(_HEAD_END)) < 0:
        if len(data) > _HEAD_BYTES_MAX:
            raise _Refused(400, "bad-request", "the head of the request does not end")
        data += _more(connection, until_s)
    authorization, length = _read_head(data[:head_end])
    start = head_end + len(_HEAD_END)
    if len(data) < start + length:
        parts, missing = [data], start + length - len(data)
        while missing > 0:
            parts.append(_more(connection, until_s))
            missing -= len(parts[-1])
        data = b"".join(parts)
    return authorization, data[start : start + length], data[start + length :]


def _more(connection: socket.socket, until_s: float) -> bytes:
    _set_patience(connection, socket.SO_RCVTIMEO, max(0.0, until_s - stopwatch_s()))
    try:
        piece = connection.recv(_READ_BYTES)
    except BlockingIOError:
        message = f"a request is whole within {_REQUEST_SECONDS:g} seconds here; send it faster"
        raise _Refused(408, "request-timeout", message) from None
    finally:
        _set_patience(connection, socket.SO_RCVTIMEO, _SILENT_SECONDS)
    if not piece:
        raise ConnectionResetError("the request ended in the middle")
    return piece


def _read_head(head: bytes) -> tuple[str, int]:
    """Who calls, and how long the content is."""
    request_line, *lines = head.split(b"\r\n")
    if request_line != _REQUEST_LINE:
        raise _Refused(404, "not-found", f"there is only POST {PATH} here; the port has the rest")
    authorization, length = "", b""
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                length = value.strip()
            case b"authorization":
                authorization = str(value.strip(), "utf-8", "surrogateescape")
    if not length.isdigit() or len(length) > 19:
        raise _Refused(411, "bad-request", "the request does not say how long its content is")
    if int(length) > LOCAL_REQUEST_BYTES_MAX:
        raise _Refused(
            413, "body-too-large", f"a request has at most {LOCAL_REQUEST_BYTES_MAX} bytes here; use the port"
        )
    return authorization, int(length)


def _answer(status: int, content: bytes, connection: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d \r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        connection,
        len(content),
        content,
    )


def _say_farewell(connection: socket.socket, refused: _Refused) -> None:
    try:
        connection.sendall(_answer(refused.status, refused.content, b"connection: close\r\n"))
    except OSError:
        return


def _set_patience(connection: socket.socket, what: int, seconds: float) -> None:
    """Kept by the kernel: Python's own time-outs cost a call of `poll` before each read."""
    whole = int(seconds)
    value = struct.pack("ll", whole, max(1, int((seconds - whole) * 1e6)))
    connection.setsockopt(socket.SOL_SOCKET, what, value)


def _shut(end: socket.socket, how: int) -> None:
    try:
        end.shutdown(how)
    except OSError:
        return  # it has ended meanwhile
