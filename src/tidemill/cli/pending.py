"""`tidemill pending`: pending messages, earliest due first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType

from tidemill.cli.arguments import FromOption, KeyOption, ToOption, TopicOption, on_clock
from tidemill.cli.connecting import client_command, clock_of
from tidemill.cli.output import Answer, relative_time, table
from tidemill.cli.status_picture import WAITS_SHORT
from tidemill.client.client import Client
from tidemill.core.answers import PendingMessage
from tidemill.core.durations import format_time


@client_command
def pending(
    client: Client,
    topic: TopicOption = None,
    key: KeyOption = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 20,
) -> Answer:
    """Show pending messages, earliest due first; with --json one object per line."""
    first, last = on_clock(client, start), on_clock(client, end)
    found = client.pending(topic, key=key, start=first, end=last, limit=limit)
    return Answer([_fields(message) for message in found], lambda: _shown(found, client, limit))


def _fields(message: PendingMessage) -> dict[str, object]:
    fields = asdict(message) | {"handle": str(message.handle), "message_id": message.id}
    del fields["id"], fields["seq"]  # the handle has it
    fields["key"] = message.keys[0] if message.keys else None
    fields["deliver_at"] = format_time(message.deliver_at_ms)
    return fields


def _due(message: PendingMessage, now_ms: int | None) -> str:
    """How far off its due time is; of one that is overdue, what it waits for."""
    if message.waits_for is not None:
        return f"[yellow]overdue: {WAITS_SHORT.get(message.waits_for, message.waits_for)}[/]"
    return "" if now_ms is None else relative_time(message.deliver_at_ms, now_ms)


def _shown(found: list[PendingMessage], client: Client, limit: int) -> Iterator[RenderableType]:
    if not found:
        yield "no pending message matches; `tidemill send TOPIC BODY --delay 30m` sends one"
        return
    now_ms = clock_of(client)
    yield table(
        "due,at,topic,key,>body bytes,id",
        (
            (
                _due(message, now_ms),
                format_time(message.deliver_at_ms),
                message.topic,
                " ".join(message.keys),
                "" if message.body_bytes is None else f"{message.body_bytes:,}",
                message.id if not message.is_damaged else "[yellow]its bytes are damaged[/]",
            )
            for message in found
        ),
    )
    if len(found) == limit:
        yield f"the first {limit}; see more with --limit, handles with --json"
