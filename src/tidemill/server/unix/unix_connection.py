"""One connection on the Unix socket: bytes received, the request they form, the answer not yet read.

Implements just enough HTTP/1.1 for Tidemill's own client: `POST /v1/send-batch` with a length. Never blocks:
the loop (`unix_listener.py`) calls it when there is something to read or space to write, and passes the time.

Invariants: what is gathered of a request is bounded; while an answer is not read, nothing more is read.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from tidemill.core.limits import LOCAL_REQUEST_BYTES_MAX
from tidemill.server.http.http_errors import refusal_bytes
from tidemill.server.send_batch_service import PATH

SILENT_SECONDS: Final = 60.0  # a kept connection may be silent for so long
REQUEST_SECONDS: Final = 10.0  # a request that has begun is whole by then
UNREAD_SECONDS: Final = 10.0  # an answer is taken by then
_HEAD_BYTES_MAX = 16_384
_READ_BYTES = 1 << 14  # of a request of unknown length; more would allocate each time
_HEAD_END = b"\r\n\r\n"
_REQUEST_LINE = f"POST {PATH} HTTP/1.1".encode()


class Refused(Exception):
    """An invalid request; the connection ends with this answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.content = refusal_bytes(code, message)


class Request(NamedTuple):
    """A request that is whole."""

    authorization: str
    content: bytes


class UnixConnection:
    """A connection of one caller. For the loop's thread alone, but for `hang_up`."""

    def __init__(self, caller: socket.socket, now_s: float) -> None:
        caller.setblocking(False)
        self.socket = caller
        self.is_served = False  # its request is under way
        self.is_leaving = False  # it ends when its answer is read
        self._data = b""
        self._parts: list[bytes] = []  # of a request that comes in pieces, behind `_data`
        self._missing = 0
        self._unread = b""
        self._deadline_s = now_s + SILENT_SECONDS
        self._known_lines = b""  # all of a head but its last line, which was read before
        self._known_authorization = ""

    @property
    def unread_bytes(self) -> int:
        """What the caller has not taken of its answer."""
        return len(self._unread)

    @property
    def has_more(self) -> bool:
        """Whether something came behind the last request."""
        return bool(self._data)

    # -- requests ---------------------------------------------------------------------------------

    def take(self, now_s: float) -> bool:
        """Take what has come; False if the caller has ended the connection."""
        try:
            piece = self.socket.recv(_READ_BYTES if self._missing <= 0 else self._missing)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not piece:
            return False
        if not self._data:
            self._data, self._deadline_s = piece, now_s + REQUEST_SECONDS
        else:
            self._parts.append(piece)
            self._missing -= len(piece)
        return True

    def next_request(self, now_s: float) -> Request | None:
        """The next request, if it is whole. `Refused` if what came is none."""
        if not self._data or self._missing > 0:
            return None
        if self._parts:
            self._data, self._parts = b"".join((self._data, *self._parts)), []
        data = self._data
        head_end = data.find(_HEAD_END)
        if head_end < 0:
            if len(data) > _HEAD_BYTES_MAX:
                raise Refused(400, "bad-request", "the request head is too long")
            return None
        authorization, length = self._read_head(data[:head_end])
        start = head_end + len(_HEAD_END)
        self._missing = start + length - len(data)
        if self._missing > 0:
            return None
        self._data, self._missing = data[start + length :], 0
        self.has_been_read(now_s)
        return Request(authorization, data[start : start + length])

    def _read_head(self, head: bytes) -> tuple[str, int]:
        """Who calls, and how long the content is. Heads of one caller differ in their last line at most."""
        lines, _, last = head.rpartition(b"\r\n")
        name, _, value = last.partition(b":")
        ends_in_length = name.lower() == b"content-length"
        if lines and lines == self._known_lines and ends_in_length:
            return self._known_authorization, _length(value)
        authorization, length = _parsed_head(head)
        # The last line may be the credentials; then the others are not.
        self._known_lines = lines if ends_in_length else b""
        self._known_authorization = authorization
        return authorization, length

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, status: int, content: bytes, now_s: float) -> bool:
        """Send an answer, as far as the socket takes it; False if the client is gone."""
        return self._send(_answer(status, content), now_s)

    def refuse(self, refused: Refused, now_s: float) -> bool:
        """Send the answer that ends the connection; False if the caller is gone."""
        self.is_leaving = True
        return self._send(_answer(refused.status, refused.content, b"connection: close\r\n"), now_s)

    def send_more(self) -> bool:
        """Send the unsent rest; False if the client is gone."""
        try:
            sent = self.socket.send(self._unread)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._unread = self._unread[sent:]
        return True

    def has_been_read(self, now_s: float) -> None:
        """A request of the caller, or by the caller an answer, was read: it may take its time again."""
        self._deadline_s = now_s + (REQUEST_SECONDS if self._data else SILENT_SECONDS)

    def _send(self, data: bytes, now_s: float) -> bool:
        self._unread = data
        is_there = self.send_more()
        if self._unread:
            self._deadline_s = now_s + UNREAD_SECONDS
        return is_there

    # -- the end ----------------------------------------------------------------------------------

    def is_over(self, now_s: float) -> bool:
        """Whether it exceeded the time limits."""
        return now_s > self._deadline_s

    def timeout_answer(self) -> Refused | None:
        """The answer to a timed-out connection: only a begun request gets one."""
        if self._unread or not self._data:
            return None
        message = f"the request was not complete within {REQUEST_SECONDS:g} seconds; send it faster"
        return Refused(408, "request-timeout", message)

    def hang_up(self) -> None:
        """Let the caller see the end. From any thread."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended meanwhile

    def close(self) -> None:
        self.socket.close()


def _parsed_head(head: bytes) -> tuple[str, int]:
    """The credentials and the content length; `Refused` if the head is invalid."""
    request_line, *lines = head.split(b"\r\n")
    if request_line != _REQUEST_LINE:
        raise Refused(
            404, "not-found", f"the Unix socket takes only POST {PATH}; use the TCP port for others"
        )
    authorization, length = "", b""
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                length = value
            case b"authorization":
                authorization = str(value.strip(), "utf-8", "surrogateescape")
    return authorization, _length(length)


def _length(value: bytes) -> int:
    digits = value.strip()
    if not digits.isdigit() or len(digits) > 19:
        raise Refused(411, "bad-request", "Content-Length is missing or not a whole number")
    if int(digits) > LOCAL_REQUEST_BYTES_MAX:
        raise Refused(
            413,
            "body-too-large",
            f"a request has at most {LOCAL_REQUEST_BYTES_MAX} bytes on the Unix socket; use the TCP port",
        )
    return int(digits)


def _answer(status: int, content: bytes, connection: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d \r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        connection,
        len(content),
        content,
    )
