"""The HTTP API: every operation for people and programs that speak JSON, described at `/docs`.

Owns the assembly: routes, the fast endpoint for consumers, one form for errors. The application in front
(`server/app.py`) sends it everything that it does not answer itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Response
from starlette.types import Receive, Scope, Send

from tidemill.broker.broker import Broker
from tidemill.server.http.api_page import api_page
from tidemill.server.http.dashboard import PAGE_HEADERS
from tidemill.server.http.http_admin import BackupPlace, group_routes, operation_routes, topic_routes
from tidemill.server.http.http_charts import due_routes, history_routes, timed
from tidemill.server.http.http_consuming import ConsumerEndpoint, Consumers, consumer_routes
from tidemill.server.http.http_errors import add_error_handlers
from tidemill.server.http.http_messages import change_routes, send_routes
from tidemill.server.http.http_models import ErrorAnswer
from tidemill.server.http.http_retries import letter_routes, retry_routes
from tidemill.server.http.http_views import find_routes, query_routes
from tidemill.server.http.send_batch_endpoint import SendBatchEndpoint
from tidemill.server.long_poll import LongPolls
from tidemill.server.send_batch_service import SendBatchService

_BATCH_THREADS = 8
_VERSION = "1"
_FRAMEWORK_ERRORS = ("HTTPValidationError", "ValidationError")
_ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in (
        (400, "The request is wrong; nothing was written"),
        (401, "Token missing or unknown"),
        (403, "The token does not allow this"),
        (404, "No such topic or message"),
        (409, "The topic exists or is in use"),
        (413, "The body is too large"),
        (429, "Too many requests or bytes at once; retry later"),
        (503, "The broker is closed or its storage needs attention"),
        (507, "The disk is full; sends are refused until space is freed"),
    )
}


# Answered by the application in front (`server/app.py`).
_ANSWERED_BEFORE = {
    f"/{name}": {
        "get": {
            "tags": ["health"],
            "operationId": name,
            "description": text,
            "responses": {"200": {"description": "OK"}},
        }
    }
    for name, text in (
        ("metrics", "Figures for Prometheus."),
        ("healthz", "200 while the broker is open and well, 503 with the reason otherwise."),
    )
}


class HttpApi(FastAPI):
    """FastAPI, except for the fast endpoints, which come before any of its middleware."""

    batch_endpoint: SendBatchEndpoint  # for `POST /v1/send-batch`, past all that is here
    consumer_endpoint: ConsumerEndpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.consumer_endpoint.has(scope):
            await self.consumer_endpoint(scope, receive, send)
        else:
            await self.by_routes(scope, receive, send)

    async def by_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The framework's own way."""
        await super().__call__(scope, receive, timed(send))

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description, without the framework's 422: invalid requests answer 400 here."""
        if self.openapi_schema is None:
            spec = super().openapi()
            spec["paths"].update(_ANSWERED_BEFORE)
            for operations in spec["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            for name in _FRAMEWORK_ERRORS:
                spec["components"]["schemas"].pop(name, None)
        return super().openapi()


def http_api(broker: Broker, polls: LongPolls, backups: BackupPlace | None = None) -> HttpApi:
    """The API of an open broker; `backups` restricts where backups may go (default: anywhere)."""
    threads = ThreadPoolExecutor(_BATCH_THREADS, "tidemill-batch")
    app = HttpApi(
        title="Tidemill",
        version=_VERSION,
        summary="Holds messages until their time, then puts each into its topic: once, never early.",
        responses=_ERRORS,
        docs_url=None,  # FastAPI's own pages fetch scripts from other hosts
        redoc_url=None,
    )
    add_error_handlers(app)
    app.batch_endpoint = SendBatchEndpoint(SendBatchService(broker), threads)
    consumers = Consumers(broker, polls, threads)
    app.consumer_endpoint = ConsumerEndpoint(consumers, app.by_routes)
    for routes in (
        send_routes(broker),
        consumer_routes(consumers),
        change_routes(broker),
        retry_routes(broker),
        letter_routes(broker),
        query_routes(broker),
        due_routes(broker),
        history_routes(broker),
        find_routes(broker),
        topic_routes(broker),
        group_routes(broker),
        operation_routes(broker, backups or BackupPlace()),
    ):
        app.include_router(routes)
    _add_description(app)
    return app


def _add_description(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        """The API for people."""
        return Response(api_page(app.openapi()), media_type="text/html", headers=PAGE_HEADERS)
