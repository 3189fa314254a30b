"""The application is plain ASGI: it runs on hypercorn too. A smoke test with a bare gRPC channel."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config

import tidemill
from acceptance.serving import free_port
from tidemill.server.app import Door, Opened
from tidemill.server.gateway import Gateway
from tidemill.server.protocol import SERVICE, Code, definition, service


def test_send_and_receive_through_hypercorn(tmp_path):
    with tidemill.open(tmp_path / "data") as broker:
        broker.topics.create("orders")
        asyncio.run(asyncio.wait_for(_scene(broker), 30))


async def _scene(broker: tidemill.Broker) -> None:
    door = Door()
    config = Config()
    config.bind = [f"127.0.0.1:{free_port()}"]
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(door, config, shutdown_trigger=stop.wait))
    async with grpc.aio.insecure_channel(config.bind[0]) as channel:
        await channel.channel_ready()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _call(channel, "SendMessage", _send())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        gateway = Gateway(broker)
        door.opened = Opened(broker, gateway)
        sent = await _call(channel, "SendMessage", _send())
        assert (sent.status.code, len(sent.entries)) == (Code.OK, 1)
        receive = channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )
        frames = [frame async for frame in receive(_receive(), timeout=10)]
        assert [frame.message.body for frame in frames if frame.HasField("message")] == [b"hello"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(SERVICE + "PullMessage")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await gateway.drain(1)
    stop.set()
    await serving


async def _call(channel: grpc.aio.Channel, name: str, request: Any) -> Any:
    method = channel.unary_unary(
        SERVICE + name,
        request_serializer=type(request).SerializeToString,
        response_deserializer=getattr(service, f"{name}Response").FromString,
    )
    return await method(request, timeout=10)


def _send() -> Any:
    message = definition.Message(body=b"hello")
    message.topic.name = "orders"
    message.system_properties.message_id = "ID1"
    return service.SendMessageRequest(messages=[message])


def _receive() -> Any:
    request = service.ReceiveMessageRequest(batch_size=1)
    request.group.name = "workers"
    request.message_queue.topic.name = "orders"
    request.long_polling_timeout.seconds = 5
    return request
