"""Telemetry streams: who opens one and says nothing does not keep it."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.server import gateway
from tidemill.server.gateway import Gateway
from tidemill.server.protocol import SERVICE


def test_a_stream_on_which_nothing_is_said_is_ended(small, monkeypatch):
    monkeypatch.setattr(gateway, "_FIRST_WORD_SECONDS", 0)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def run() -> int:
        opened = Gateway(small.broker)
        await opened.service({"path": SERVICE + "Telemetry", "headers": []}, receive, send)
        held = len(opened.sessions)
        await opened.drain(1)
        return held

    assert asyncio.run(run()) == 0
    assert dict(sent[-1]["headers"])[b"grpc-status"] == b"4"
