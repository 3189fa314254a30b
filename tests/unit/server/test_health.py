"""`/healthz`: for whoever waits for the broker, or watches it without a token."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import httpx

from tidemill.core.limits import KIB
from tidemill.server.app import App, Opened


def _said(door: App) -> dict[str, object]:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://broker") as client:
            return await client.get("/healthz")

    return asyncio.run(ask()).json()


def test_health_says_how_much_room_the_disk_has(small):
    door = App()
    assert _said(door) == {"status": "opening"}
    gateway = SimpleNamespace(call_counts=Counter(), calls_under_way=0, sessions=())
    door.opened, door.state = Opened(small.broker, gateway), "open"
    used = small.disk.allocated_bytes(small.directory)
    for free, word in ((1 << 30, "enough"), (33 * KIB, "low"), (8 * KIB, "full")):
        small.disk.capacity_bytes = used + free
        assert _said(door) == {"status": "open", "disk": word}
    small.disk.capacity_bytes = None


def test_health_says_that_the_directory_is_gone(small, tmp_path):
    door = App()
    gateway = SimpleNamespace(call_counts=Counter(), calls_under_way=0, sessions=())
    door.opened, door.state = Opened(small.broker, gateway), "open"
    small.directory.rename(tmp_path / "elsewhere")
    assert _said(door) == {"status": "open", "disk": "gone"}
    (tmp_path / "elsewhere").rename(small.directory)
    assert _said(door)["disk"] != "gone"
