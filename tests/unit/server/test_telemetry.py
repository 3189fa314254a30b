"""Telemetry streams: who opens one and says nothing, or talks and never reads, does not keep it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemill.core.limits import KIB
from tidemill.server.grpc import gateway, telemetry
from tidemill.server.grpc.framing import frame
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.grpc.protocol import SERVICE, service


def test_a_stream_on_which_nothing_is_said_is_ended(small, monkeypatch):
    monkeypatch.setattr(gateway, "_FIRST_MESSAGE_SECONDS", 0)
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


class _Deaf:
    """A client that tells its settings, again and again, and takes nothing but the first bytes."""

    def __init__(self, times: int, size: int) -> None:
        command = service.TelemetryCommand()
        command.settings.publishing.topics.add().name = "orders"
        command.settings.user_agent.hostname = "h" * size
        self._body = frame(command.SerializeToString())
        self._left = times
        self.told = 0
        self.status = b""
        self.leaves = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._left:
            await self.leaves.wait()
            return {"type": "http.disconnect"}
        self._left -= 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": self._body, "more_body": True}

    async def send(self, event: dict[str, Any]) -> None:
        if event.get("body"):
            self.told += 1
            await self.leaves.wait()
        if event["type"] == "http.response.trailers":
            self.status = dict(event["headers"])[b"grpc-status"]

    async def talk(self, opened: Gateway) -> None:
        await opened.service({"path": SERVICE + "Telemetry", "headers": []}, self.receive, self.send)


@pytest.mark.parametrize("size", [10, 10 * KIB, 200 * KIB])
def test_a_client_that_never_reads_is_not_sent_more_and_more(small, size):
    async def run() -> _Deaf:
        opened, client = Gateway(small.broker), _Deaf(20_000, size)
        await client.talk(opened)
        assert len(opened.sessions) == 0 and opened.sessions.unread_bytes == 0
        await opened.drain(1)
        return client

    client = asyncio.run(run())
    assert client.told == 1
    assert client.status == b"8"


def test_who_does_not_read_in_time_does_not_keep_the_stream(small, monkeypatch):
    async def run() -> _Deaf:
        opened, client = Gateway(small.broker), _Deaf(1, 10)
        await client.talk(opened)
        assert len(opened.sessions) == 0 and opened.sessions.unread_bytes == 0
        await opened.drain(1)
        return client

    monkeypatch.setattr(telemetry, "_READ_SECONDS_MAX", 0)
    assert asyncio.run(run()).status == b"8"


def test_many_who_do_not_read_are_bounded_together_and_small_answers_go_out(small, monkeypatch):
    async def run() -> tuple[list[_Deaf], _Deaf]:
        opened = Gateway(small.broker)
        clients, modest = [_Deaf(1, 100 * KIB) for _ in range(5)], _Deaf(1, 10)
        calls = [asyncio.create_task(client.talk(opened)) for client in [*clients, modest]]
        for _ in range(20):
            await asyncio.sleep(0)
        assert opened.sessions.unread_bytes < 310 * KIB
        for client in [*clients, modest]:
            client.leaves.set()
        await asyncio.gather(*calls)
        assert opened.sessions.unread_bytes == 0
        await opened.drain(1)
        return clients, modest

    monkeypatch.setattr(telemetry, "_UNREAD_OF_ALL_BYTES_MAX", 305 * KIB)
    clients, modest = asyncio.run(run())
    assert [client.told for client in clients] == [1, 1, 1, 0, 0]
    assert [client.status for client in clients] == [b"", b"", b"", b"8", b"8"]
    assert modest.told == 1


def test_refused_settings_are_answered_with_the_reason_and_the_stream_ends(small):
    command = service.TelemetryCommand()
    command.settings.subscription.group.name = "no such name!"  # as is one that the permissions forbid
    asked = [{"type": "http.request", "body": frame(command.SerializeToString()), "more_body": True}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return asked.pop() if asked else await asyncio.get_running_loop().create_future()

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def run() -> None:
        opened = Gateway(small.broker)
        await opened.service({"path": SERVICE + "Telemetry", "headers": []}, receive, send)
        await opened.drain(1)

    asyncio.run(run())
    (told,) = [event["body"][5:] for event in sent if event.get("body")]
    answer = service.TelemetryCommand.FromString(told)
    assert not answer.HasField("settings") and "no such name!" in answer.status.message
    trailers = dict(sent[-1]["headers"])
    assert trailers[b"grpc-status"] == b"3" and b"no such name!" in trailers[b"grpc-message"]


def test_settings_that_come_when_the_broker_stops_are_refused(small):
    command = service.TelemetryCommand()
    command.settings.subscription.group.name = "workers"
    asked = {"type": "http.request", "body": frame(command.SerializeToString()), "more_body": True}
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        opened = Gateway(small.broker)

        async def receive() -> dict[str, Any]:  # the stream has begun by now
            await opened.drain(1)
            return asked

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        await opened.service({"path": SERVICE + "Telemetry", "headers": []}, receive, send)

    asyncio.run(run())
    assert dict(sent[-1]["headers"])[b"grpc-status"] == b"14"
