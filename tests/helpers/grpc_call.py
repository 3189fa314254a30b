"""The two ends of a gRPC receive that needs no server: what calls, and what is delivered to it."""

from __future__ import annotations

from typing import Any

from tidemill.server.grpc.protocol import service


class ConsumerCall:
    """The call of a client named `client`, without a deadline."""

    def header(self, _: str) -> str:
        return "client"

    def left_s(self) -> None:
        return None


class DeliveryStream:
    """Keeps the messages that a streamed receive delivers."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def start(self) -> None: ...

    async def probe(self) -> None: ...

    async def write(self, frames: list[bytes]) -> None:
        answers = [service.ReceiveMessageResponse.FromString(frame) for frame in frames]
        self.messages += [answer.message for answer in answers if answer.HasField("message")]
