"""What a type checker makes of a program that uses the clients. Checked with `mypy --strict`, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import tidemill
from tidemill.core.answers import (
    FoundMessage,
    GroupInfo,
    Message,
    Moved,
    NackResult,
    PendingMessage,
    TopicInfo,
)


def blocking(client: tidemill.Client, handle: tidemill.Handle, message: Message) -> None:
    assert_type(client.send("t", b"x", delay=30, message_group="g"), tidemill.SendResult)
    assert_type(client.send_many([]), list[tidemill.SendResult | tidemill.TidemillError])
    assert_type(client.cancel(handle), tidemill.CancelAnswer)
    assert_type(client.cancel("text"), tidemill.CancelAnswer)
    assert_type(client.cancel_many([handle], request_id="r"), list[tidemill.CancelAnswer])
    assert_type(client.cancel_where("t", key="k"), int)
    assert_type(client.reschedule(handle, delay="1m"), Moved)
    assert_type(client.reschedule(handle, delay="1m").handle, tidemill.Handle | None)
    assert_type(client.pending("t"), list[PendingMessage])
    assert_type(client.pending("t")[0].handle, tidemill.Handle)
    assert_type(client.find("t", "k"), list[FoundMessage])
    assert_type(client.receive("t", "g", stop_when_idle=True), Iterator[Message])
    assert_type(client.receive_batch("t", "g", count=1, lease="30s"), list[Message])
    assert_type(client.ack(message, message), list[bool])
    assert_type(client.nack(message, delay=5), list[NackResult])
    assert_type(client.extend(message, lease="1m"), list[bool])
    assert_type(client.topics.list(), list[TopicInfo])
    assert_type(client.topics.create("t"), TopicInfo)
    assert_type(client.groups.set("g", max_attempts=3), GroupInfo)
    assert_type(client.admin.backup_progress(), tuple[int, int])
    client.cancel()  # type: ignore[call-arg]
    client.cancel(5)  # type: ignore[arg-type]
    client.nack(message, dely=5)  # type: ignore[call-arg]
    client.topics.create(5)  # type: ignore[arg-type]


async def awaited(client: tidemill.AsyncClient, handle: tidemill.Handle, message: Message) -> None:
    assert_type(await client.send("t", b"x", delay=30, message_group="g"), tidemill.SendResult)
    assert_type(await client.send_many([]), list[tidemill.SendResult | tidemill.TidemillError])
    assert_type(await client.cancel(handle), tidemill.CancelAnswer)
    assert_type(await client.cancel_many([handle]), list[tidemill.CancelAnswer])
    assert_type(await client.reschedule(handle, delay="1m"), Moved)
    assert_type(await client.find("t", "k"), list[FoundMessage])
    assert_type(client.receive("t", "g"), AsyncIterator[Message])
    assert_type(await client.nack(message), list[NackResult])
    assert_type(await client.topics.list(), list[TopicInfo])
    assert_type(await client.groups.list(), list[GroupInfo])
    await client.cancel()  # type: ignore[call-arg]
    await client.topics.create(5)  # type: ignore[arg-type]
