"""Answers that do not reach their consumer: what was in them comes again, without wearing anything out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tidemill.core.errors import TooManyRequestsError
from tidemill.server.grpc.consuming import Consuming
from tidemill.server.grpc.leases import Leases
from tidemill.server.grpc.protocol import service
from tidemill.server.response_budget import Unread


class _Call:
    def header(self, _: str) -> str:
        return "client"

    def left_s(self) -> None:
        return None


class _Line:
    """To a client that takes an answer, or resets the stream while it is written."""

    def __init__(self, *, is_cut: bool) -> None:
        self._is_cut = is_cut
        self.bodies: list[bytes] = []

    async def start(self) -> None: ...

    async def probe(self) -> None: ...

    async def write(self, frames: list[bytes]) -> None:
        answers = [service.ReceiveMessageResponse.FromString(frame) for frame in frames]
        self.bodies += [a.message.body for a in answers if a.HasField("message")]
        if self._is_cut:
            raise OSError("reset")


def _request(attempt_id: str) -> Any:
    request = service.ReceiveMessageRequest(batch_size=32, attempt_id=attempt_id)
    request.message_queue.topic.name, request.group.name = "work", "g"
    request.long_polling_timeout.seconds = 0
    return request


@pytest.mark.parametrize("how", ["reset while written", "asked for again"])
def test_what_is_lost_again_and_again_waits_longer_each_time(small, how):
    small.send("work", b"unbearable")
    is_cut = how == "reset while written"
    waits_ms = [0, 10_000, 30_000, 60_000]  # at once, then by the group's table

    async def scene() -> None:
        with ThreadPoolExecutor(1) as executor:
            consuming = Consuming(small.broker, executor, Leases())

            async def poll() -> list[bytes]:
                line = _Line(is_cut=is_cut)
                with suppress(OSError):
                    await consuming.receive(_request("" if is_cut else "same"), line, _Call())
                return line.bodies

            assert await poll() == [b"unbearable"]
            for wait_ms in waits_ms:
                if wait_ms:
                    assert await poll() == []
                    small.clock.advance(wait_ms - 1)
                    assert await poll() == []
                    small.clock.advance(1)
                assert await poll() == [b"unbearable"]
            consuming.polls.close()

    asyncio.run(scene())


def test_messages_for_which_there_is_no_room_go_back_untried(small):
    small.send("work", b"x" * 100)
    unread = Unread(bytes_max=150)

    async def scene() -> None:
        with ThreadPoolExecutor(1) as executor:
            consuming = Consuming(small.broker, executor, Leases())
            with unread.answer(None):  # as the server does for every receive
                unread.held = 51
                for _ in range(2):
                    with pytest.raises(TooManyRequestsError, match="do not read"):
                        await consuming.receive(_request(""), _Line(is_cut=False), _Call())
                unread.held = 50
                line = _Line(is_cut=False)
                await consuming.receive(_request(""), line, _Call())
                assert line.bodies == [b"x" * 100]
            consuming.polls.close()

    asyncio.run(scene())
