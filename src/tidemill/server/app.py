"""One application on one port: gRPC by its content type, everything else by its path.

Owns the dispatch between the two, and two pages that need nothing else: `/healthz` (200 while the broker is
open and healthy, 503 with the reason otherwise) and `/metrics`. The dashboard's files need no token, like
`/healthz`: they contain no data, and the sign-in page is one of them. Plain ASGI, so any server with trailers
can run it. The admin API is an application of its own, passed in as `http`.

The port listens before the broker is open: recovery may take a while, and until then every call is answered
with "retry later" (gRPC UNAVAILABLE, HTTP 503).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest

from tidemill.broker.broker import Broker
from tidemill.core.errors import BrokerClosedError, ForbiddenError
from tidemill.core.limits import FRAME_BYTES_MAX, MIB
from tidemill.server.asgi import Receive, Scope, Send, SteadyReceive, answer, header, steady_send
from tidemill.server.body_budget import BodyBudget, BodyRefused
from tidemill.server.grpc.framing import Status, Stream
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.grpc.protocol import SERVICE
from tidemill.server.http.dashboard import Dashboard
from tidemill.server.http.http_errors import error_bytes, refusal_bytes
from tidemill.server.metrics import registry_of
from tidemill.server.response_budget import Unread
from tidemill.server.security.caller import LOOK, require
from tidemill.server.security.guard import Guard
from tidemill.server.send_batch_service import PATH as BATCH_PATH

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Step = Callable[[], Awaitable[None]]

_BODIES_BYTES_MAX = 256 * MIB
_UNREAD_BYTES_MAX = 64 * MIB
# Paths whose answers are always small, so they continue while other clients do not read.
_SMALL_PATHS = {BATCH_PATH, "/metrics", "/v1/status", "/v1/ack", "/v1/cancel", "/v1/messages"}
_REFUSALS = {408: "request-timeout", 413: "body-too-large", 429: "too-many-requests"}
_RECEIVE_PATH = SERVICE + "ReceiveMessage"
_GRPC = b"application/grpc"
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Opened:
    """The broker's services, once it is open."""

    broker: Broker
    gateway: Gateway
    http: Application | None = None
    batch: Application | None = None  # what `POST /v1/send-batch` goes to, past the machinery of `http`
    registry: CollectorRegistry = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "registry", registry_of(self.broker, self.gateway))


class App:
    """The ASGI application. `opened` is set when the broker is."""

    def __init__(self, on_startup: Step | None = None, on_shutdown: Step | None = None) -> None:
        self.opened: Opened | None = None
        self.guard = Guard()
        self._dashboard = Dashboard()
        self._budget = BodyBudget(FRAME_BYTES_MAX, _BODIES_BYTES_MAX)
        self._unread = Unread(_UNREAD_BYTES_MAX)
        self.state = "opening"
        self.reason = ""  # why the broker failed, where it did
        self.opening_share: float | None = None  # how much of the log has been read
        self.facts: dict[str, object] = {}  # other fields of `/healthz`
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not header(scope, b"content-type").startswith(_GRPC):
                await self._http(scope, receive, send)
            elif self.opened is not None:
                await self._grpc(self.opened.gateway, scope, receive, send)
            else:
                await Stream(receive, send, 0).end(Status.UNAVAILABLE, self._why_not())
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    def _why_not(self) -> str:
        """Why calls cannot be served now."""
        if self.state == "opening" and self.opening_share is not None:
            return f"starting: {self.opening_share:.0%} of the log recovered; retry later"
        if self.reason:
            return f"the broker stopped: {self.reason}; retry later"
        return f"the broker is {self.state}; retry later"

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

    async def _grpc(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
        is_large = scope["path"] == _RECEIVE_PATH
        if not await self.guard.admits_grpc(scope, receive, send, self._unread if is_large else None):
            return
        if is_large:
            with self._unread.answer(send) as counted:
                await gateway.service(scope, receive, counted)
        else:
            await gateway.service(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, opened = scope["path"], self.opened
        if path == "/healthz":
            status, said = self._health()
            await answer(send, status, json.dumps(said).encode())
        elif self._dashboard.has(path):
            await self._dashboard(scope, receive, send)
        elif opened is None:
            await answer(send, 503, refusal_bytes("unavailable", self._why_not()))
        elif not await self.guard.admits_http(scope, send, None if path in _SMALL_PATHS else self._unread):
            return
        elif path == "/metrics":
            with self._unread.answer(send, may_refuse=True) as counted:
                await self._metrics(opened, counted)
        elif opened.batch is not None and path == BATCH_PATH and scope["method"] == "POST":
            await self._answered(opened.batch, scope, receive, send, send)
        elif opened.http is not None:
            with self._unread.answer(steady_send(send), may_refuse=scope["method"] == "GET") as counted:
                await self._answered(opened.http, scope, SteadyReceive(receive), counted, send)
        else:
            await answer(send, 404, b'{"error": "there is nothing here"}')

    def _health(self) -> tuple[int, dict[str, object]]:
        """The HTTP status of `/healthz` and its body: 200 only while the broker is open and healthy."""
        said: dict[str, object] = {"status": self.state}
        if self.opened is None:
            if self.state == "opening" and self.opening_share is not None:
                said["opening_share"] = round(self.opening_share, 3)
            if self.reason:
                said["reason"] = self.reason
            return 503, {**said, **self.facts}
        broker = self.opened.broker
        said |= {**self.facts, "disk": broker.store.disk_space.view().word}
        health = broker.health.view()
        if not health.is_ok:
            return 503, {**said, "status": health.state, "reason": health.reason}
        try:
            broker.require_open()
        except BrokerClosedError as error:
            return 503, {**said, "status": "closed", "reason": str(error)}
        return 200, said

    async def _answered(
        self, http: Application, scope: Scope, receive: Receive, counted: Send, send: Send
    ) -> None:
        """Let `http` answer, with the bytes of the body counted; `send` is for a refusal of those."""
        body = self._budget.watch(receive)
        try:
            self._budget.require_announced(scope)
            await http(scope, body, counted)
        except BodyRefused as refused:
            code = _REFUSALS[refused.status_code]
            await answer(send, refused.status_code, refusal_bytes(code, refused.detail))
        finally:
            body.close()

    async def _metrics(self, opened: Opened, send: Send) -> None:
        try:
            require(LOOK)
        except ForbiddenError as error:
            await answer(send, 403, error_bytes(error))
        else:
            # Gathering takes the broker's locks, which the event loop must not wait for.
            await answer(send, 200, await asyncio.to_thread(generate_latest, opened.registry), _TEXT)
