"""One application on one port: gRPC by its content type, everything else by its path.

Owns the fork between the two and the two pages that need nothing else: `/healthz` for whoever waits for the
broker, `/metrics` for whoever watches it. Plain ASGI, so any server with trailers can run it. The admin API
is an application of its own, handed in as `http`.

The door opens before the broker has: recovery may take a while, and until then every call is told to come
back (gRPC UNAVAILABLE, HTTP 503).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest

from tidemill.broker.broker import Broker
from tidemill.server.gateway import Gateway
from tidemill.server.grpc_framing import Receive, Scope, Send, Status, Stream
from tidemill.server.metrics import registry_of

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Step = Callable[[], Awaitable[None]]

_GRPC = b"application/grpc"
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Opened:
    """What is behind the door once the broker is open."""

    broker: Broker
    gateway: Gateway
    http: Application | None = None
    registry: CollectorRegistry = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "registry", registry_of(self.broker))


class Door:
    """The ASGI application. `opened` is set when the broker is."""

    def __init__(self, on_startup: Step | None = None, on_shutdown: Step | None = None) -> None:
        self.opened: Opened | None = None
        self.state = "opening"
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not _is_grpc(scope):
                await self._http(scope, receive, send)
            elif self.opened is not None:
                await self.opened.gateway.service(scope, receive, send)
            else:
                await Stream(receive, send, 0).end(Status.UNAVAILABLE, f"the broker is {self.state}")
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                if self._on_startup is not None:
                    await self._on_startup()
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._on_shutdown is not None:
                    await self._on_shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, opened = scope["path"], self.opened
        if path == "/healthz":
            content = json.dumps({"status": self.state}).encode()
            await _page(send, 200 if opened is not None else 503, _JSON, content)
        elif opened is None:
            await _page(send, 503, _JSON, json.dumps({"error": f"the broker is {self.state}"}).encode())
        elif path == "/metrics":
            await _page(send, 200, _TEXT, generate_latest(opened.registry))
        elif opened.http is not None:
            await opened.http(scope, receive, send)
        else:
            await _page(send, 404, _JSON, b'{"error": "there is nothing here"}')


def _is_grpc(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bool(value.startswith(_GRPC))
    return False


async def _page(send: Send, status: int, content_type: bytes, content: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})
