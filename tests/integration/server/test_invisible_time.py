"""Where RocketMQ's clients are served more leniently than by RocketMQ: a short invisible time, a late ack."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from helpers.grpc_call import ConsumerCall, DeliveryStream
from tidemill.core.errors import IllegalLeaseError
from tidemill.core.limits import HOUR_MS
from tidemill.server.grpc.consuming import Consuming
from tidemill.server.grpc.leases import Leases
from tidemill.server.grpc.protocol import Code, service


class _Consumer:
    """Polls and acknowledges as a client does, with no wait."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming

    async def poll(self, invisible_ms: int) -> list[Any]:
        request, line = service.ReceiveMessageRequest(batch_size=1), DeliveryStream()
        request.message_queue.topic.name, request.group.name = "work", "g"
        request.long_polling_timeout.seconds = 0
        request.invisible_duration.seconds, rest_ms = divmod(invisible_ms, 1000)
        request.invisible_duration.nanos = rest_ms * 1_000_000
        await self._consuming.receive(request, line, ConsumerCall())
        return line.messages

    async def ack(self, message: Any) -> int:
        request = service.AckMessageRequest()
        request.topic.name, request.group.name = "work", "g"
        request.entries.add(receipt_handle=message.system_properties.receipt_handle)
        return int((await self._consuming.ack(request, ConsumerCall())).status.code)


def _run(small, scene) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            consuming = Consuming(small.broker, executor, Leases())
            await scene(_Consumer(consuming))
            consuming.polls.close()

    asyncio.run(run())


@pytest.mark.parametrize("invisible_ms", [1, 9_999, 12 * HOUR_MS])
def test_any_invisible_time_up_to_twelve_hours_is_taken(small, invisible_ms):
    small.send("work", b"a")

    async def scene(consumer: _Consumer) -> None:
        assert len(await consumer.poll(invisible_ms)) == 1
        small.clock.advance(invisible_ms - 1)
        assert await consumer.poll(invisible_ms) == []
        small.clock.advance(1)
        assert len(await consumer.poll(invisible_ms)) == 1

    _run(small, scene)


@pytest.mark.parametrize(("invisible_ms", "which"), [(0, "too small"), (12 * HOUR_MS + 1, "too large")])
def test_others_are_refused_with_the_limits(small, invisible_ms, which):
    small.send("work", b"a")

    async def scene(consumer: _Consumer) -> None:
        with pytest.raises(IllegalLeaseError, match=f"{invisible_ms} ms is {which}; use 1 ms to 12 h"):
            await consumer.poll(invisible_ms)

    _run(small, scene)


def test_a_late_ack_counts_until_the_message_is_delivered_again(small):
    small.send("work", b"a")

    async def scene(consumer: _Consumer) -> None:
        (first,) = await consumer.poll(1)
        small.clock.advance(60_000)
        (second,) = await consumer.poll(1)
        assert await consumer.ack(first) == Code.INVALID_RECEIPT_HANDLE
        small.clock.advance(60_000)
        assert await consumer.ack(second) == Code.OK
        assert await consumer.poll(1) == []
        assert await consumer.ack(second) == Code.INVALID_RECEIPT_HANDLE

    _run(small, scene)
