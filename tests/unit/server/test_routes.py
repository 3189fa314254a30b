"""Routes over gRPC: which topics there are, and which of them are made by asking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemill.server.grpc.framing import MessageReader, frame
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.grpc.protocol import SERVICE, Code, service


async def _route_status(gateway: Gateway, namespace: str, name: str) -> int:
    request = service.QueryRouteRequest()
    request.topic.resource_namespace, request.topic.name = namespace, name
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": frame(request.SerializeToString()), "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    await gateway.service({"path": SERVICE + "QueryRoute", "headers": []}, receive, send)
    (body,) = [event["body"] for event in sent if event["type"] == "http.response.body"]
    (data,) = MessageReader(1 << 20).feed(body)
    code: int = service.QueryRouteResponse.FromString(data).status.code
    return code


@pytest.mark.parametrize("creates_topics", [True, False])
@pytest.mark.parametrize("namespace", ["shop", ""])
def test_a_groups_own_topics_are_not_made_by_asking_for_them(small, namespace, creates_topics):
    async def run() -> list[int]:
        gateway = Gateway(small.broker, creates_topics=creates_topics)
        codes = [await _route_status(gateway, namespace, name) for name in ("%DLQ%g1", "%RETRY%g1", "orders")]
        await gateway.drain(1)
        return codes

    orders = Code.OK if creates_topics else Code.TOPIC_NOT_FOUND
    assert asyncio.run(run()) == [Code.TOPIC_NOT_FOUND, Code.TOPIC_NOT_FOUND, orders]
    made = {topic.name for topic in small.broker.views.topics()}
    assert made == ({"shop%orders" if namespace else "orders"} if creates_topics else set())


def test_a_client_in_a_namespace_finds_the_dead_letters_of_its_group(small):
    small.send("shop%orders")
    (delivery,) = small.broker.receive("shop%orders", "shop%g1")
    assert small.broker.dead_letter([delivery.ack_token])[0]

    async def run() -> list[int]:
        gateway = Gateway(small.broker)
        codes = [await _route_status(gateway, *name) for name in (("shop", "%DLQ%g1"), ("", "%DLQ%shop%g1"))]
        await gateway.drain(1)
        return codes

    assert asyncio.run(run()) == [Code.OK, Code.OK]
