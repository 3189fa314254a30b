"""Calls an ASGI application from a plain test, on one event loop that lives as long as the caller."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from helpers.open_app import OpenApp


class AsgiCaller:
    """An HTTP client without a network."""

    def __init__(self, app: OpenApp, *, raises: bool = True) -> None:
        self._runner = asyncio.Runner()
        self._app = app
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=raises), base_url="http://broker"
        )

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **given))

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)

    def put(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PUT", path, **given)

    def delete(self, path: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", path, **given)

    def __enter__(self) -> AsgiCaller:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._app.polls.close()
        self._runner.close()
