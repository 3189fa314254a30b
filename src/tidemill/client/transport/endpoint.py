"""The broker's address: `host:port`, `http://host:port` or `https://host:port`, and the bytes of HTTP.

Also owns the bytes around a request: one head made once for each path, and the parsing of an answer's head.
HTTP/1.1 with kept connections is all that is needed; docs/decisions/0009 has what that saves.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from tidemill.core.addresses import UNIX_SOCKET_HEADER
from tidemill.core.arguments import require_kind
from tidemill.core.errors import RequestError
from tidemill.core.frozen import frozen

DEFAULT_ENDPOINT = "127.0.0.1:8081"
_DEFAULT_PORT = 8081
_HEAD_END = b"\r\n\r\n"
_UNIX_SOCKET = UNIX_SOCKET_HEADER.encode()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed endpoint."""

    host: str
    port: int
    is_tls: bool = False
    ca: str = ""  # a file with the certificates to trust; empty: the machine's
    is_verified: bool = True  # False: any certificate will do

    @classmethod
    def parse(cls, text: str, ca: str | Path = "", *, is_verified: bool = True) -> Endpoint:
        require_kind("an endpoint", text, str, f"a text like {DEFAULT_ENDPOINT}")
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if (
            not host
            or not host.isprintable()
            or " " in host
            or parts.scheme not in ("http", "https")
            or parts.path not in ("", "/")
            or port == 0
        ):
            raise RequestError(f"not an endpoint: {text!r}; write it like {DEFAULT_ENDPOINT}")
        is_tls = parts.scheme == "https"
        return cls(host, port or (443 if is_tls else _DEFAULT_PORT), is_tls, str(ca), is_verified)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https://' if self.is_tls else ''}{host}:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        return _tls_context(self.ca, self.is_verified) if self.is_tls else None


@lru_cache(8)
def _tls_context(ca: str, is_verified: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise RequestError(f"cannot use {ca} as certificates to trust: {error.strerror or error}") from None
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@frozen
class Answer:
    """What came back."""

    status: int
    content: bytes
    unix_socket: str = ""  # the name of the broker's Unix socket


@frozen
class Head:
    """The head of an answer: its status, and how its content is delimited."""

    status: int
    length: int | None  # None: in chunks
    is_kept: bool  # the connection may be used again
    unix_socket: str = ""


class MalformedAnswerError(Exception):
    """What came back is not HTTP."""


def request_head(
    endpoint: Endpoint, method: str, path: str, content_type: str, token: str, request_id: str = ""
) -> bytes:
    """The head of a request but for the length of its content, which is to follow as digits."""
    host = str(endpoint).removeprefix("https://")
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "User-Agent: tidemill-python"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if request_id:
        lines.append(f"Idempotency-Key: {request_id}")
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join([*lines, "Content-Length: "]).encode()


def read_head(data: bytes | bytearray) -> tuple[Head, int] | None:
    """The head at the start of `data` and where it ends; None while it is not whole."""
    end = data.find(_HEAD_END)
    if end < 0:
        if len(data) > 65_536:
            raise MalformedAnswerError("the response head is too long")
        return None
    lines = bytes(data[:end]).split(b"\r\n")
    try:
        status = int(lines[0].split(b" ", 2)[1])
    except (IndexError, ValueError):
        raise MalformedAnswerError(f"not an HTTP answer: {lines[0][:60]!r}") from None
    length: int | None = 0
    is_kept = lines[0].startswith(b"HTTP/1.1")
    unix_socket = b""
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        lower = name.lower()
        if lower == b"content-length":
            length = int(value)
        elif lower == b"transfer-encoding" and b"chunked" in value.lower():
            length = None
        elif lower == b"connection" and b"close" in value.lower():
            is_kept = False
        elif lower == _UNIX_SOCKET:
            unix_socket = value.strip()
    return Head(status, length, is_kept, unix_socket.decode("latin-1")), end + 4


def read_chunks(data: bytes | bytearray, start: int) -> bytes | None:
    """The content in chunks that begins at `start`; None while it is not whole."""
    parts: list[bytes] = []
    at = start
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        try:
            size = int(bytes(data[at:line_end]).split(b";")[0], 16)
        except ValueError:
            raise MalformedAnswerError("a chunk's size is not a number") from None
        at = line_end + 2
        if len(data) < at + size + 2:
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(bytes(data[at : at + size]))
        at += size + 2
