"""What producers may do over gRPC beside sending: each message is refused for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemill.server.grpc.framing import MessageReader, frame
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.grpc.protocol import SERVICE, Code, service
from tidemill.server.security.authority import Authority
from tidemill.server.security.caller import set_caller

_FILE = """
[users.till]
token = "till-token-1"
[[users.till.allow]]
verbs = ["send"]
topics = ["orders"]

[users.shop]
token = "shop-token-1"
[[users.shop.allow]]
verbs = ["send", "cancel"]
topics = ["orders"]
"""


@pytest.fixture
def send(small, tmp_path):
    """Send messages with these values of `__once` as a user; the status of each."""
    path = tmp_path / "permissions.toml"
    path.write_text(_FILE)
    path.chmod(0o600)
    authority = Authority(path)
    small.broker.topics.create("orders")

    def run(user: str, *onces: str) -> list[int]:
        request = service.SendMessageRequest()
        for number, once in enumerate(onces):
            message = request.messages.add(body=b"x")
            message.topic.name = "orders"
            message.system_properties.message_id = f"{user}-{number}-{once}"
            message.system_properties.keys.append("order-17")
            message.user_properties.update({"__delay_ms": "60000", "__once": once})
        response = asyncio.run(_called(user, request))
        if not response.entries:
            return [response.status.code]
        return [entry.status.code for entry in response.entries]

    async def _called(user: str, request: Any) -> Any:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": frame(request.SerializeToString()), "more_body": False}

        async def answer(event: Any) -> None:
            sent.append(event)

        set_caller(authority.user_of_token(f"Bearer {user}-token-1"))
        gateway = Gateway(small.broker)
        await gateway.service({"path": SERVICE + "SendMessage", "headers": []}, receive, answer)
        await gateway.drain(1)
        (body,) = [event["body"] for event in sent if event["type"] == "http.response.body"]
        (data,) = MessageReader(1 << 20).feed(body)
        return service.SendMessageResponse.FromString(data)

    return run


def test_replacing_what_waits_needs_cancel_too(send, small):
    assert send("till", "keep") == [Code.OK]
    (waits,) = small.broker.views.pending(topic_name="orders")
    small.advance(5_000)
    assert send("till", "replace") == [Code.FORBIDDEN]
    assert send("till", "replace", "keep") == [Code.FORBIDDEN, Code.OK]
    assert small.broker.views.pending(topic_name="orders")[0].deliver_at_ms == waits.deliver_at_ms
    assert send("shop", "replace") == [Code.OK]
    assert small.broker.views.pending(topic_name="orders")[0].deliver_at_ms == waits.deliver_at_ms + 5_000
