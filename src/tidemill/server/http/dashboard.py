"""The dashboard's files: read once from the package, served from memory, without authentication.

Owns their paths (`/` and `/dashboard/...`) and the headers that keep the page to this host: the content
policy lets it load nothing from, and send nothing to, another host. The data comes from the admin API, which
authenticates; the files themselves contain no data.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from tidemill.server.asgi import Receive, Scope, Send, header

PREFIX = "/dashboard/"
_FOLDER = "web"
_KINDS = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "woff2": b"font/woff2",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in PAGE_HEADERS.items()]


@dataclass(frozen=True, slots=True)
class _File:
    kind: bytes
    content: bytes
    tag: bytes


class Dashboard:
    """An ASGI application of a few files."""

    def __init__(self) -> None:
        self._files = _read(files("tidemill.server").joinpath(_FOLDER), PREFIX)
        self._files["/"] = self._files[PREFIX + "index.html"]

    def has(self, path: str) -> bool:
        return path in self._files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = self._files[scope["path"]]
        headers = [*_HEADERS, (b"etag", file.tag), (b"content-type", file.kind)]
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, [(b"allow", b"GET, HEAD")], b"")
        elif header(scope, b"if-none-match") == file.tag:
            await _answer(send, 304, headers, b"")
        else:
            length = (b"content-length", str(len(file.content)).encode())
            content = file.content if scope["method"] == "GET" else b""
            await _answer(send, 200, [*headers, length], content)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _read(folder: Traversable, prefix: str) -> dict[str, _File]:
    """Every file below a directory that a browser can request, by its path."""
    found: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        elif (kind := _KINDS.get(entry.name.rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'.encode()
            found[prefix + entry.name] = _File(kind, content, tag)
    return found
