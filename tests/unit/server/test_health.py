"""`/healthz`: for callers that wait for the broker, or watch it without a token."""

from __future__ import annotations

import asyncio

import httpx

from helpers.open_app import OpenApp
from tidemill.core.limits import KIB
from tidemill.server.app import App


def _said(app: App) -> dict[str, object]:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as client:
            return await client.get("/healthz")

    return asyncio.run(ask()).json()


def test_health_says_how_much_room_the_disk_has(small):
    app = App()
    assert _said(app) == {"status": "opening"}
    app = OpenApp(small.broker)
    used = small.disk.allocated_bytes(small.directory)
    for free, word in ((1 << 30, "enough"), (33 * KIB, "low"), (8 * KIB, "full")):
        small.disk.capacity_bytes = used + free
        assert _said(app) == {"status": "open", "disk": word}
    small.disk.capacity_bytes = None


def test_health_says_that_the_directory_is_gone(small, tmp_path):
    app = OpenApp(small.broker)
    small.directory.rename(tmp_path / "elsewhere")
    assert _said(app) == {"status": "open", "disk": "gone"}
    (tmp_path / "elsewhere").rename(small.directory)
    assert _said(app)["disk"] != "gone"
