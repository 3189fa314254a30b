"""`tidemill pending`: pending messages, earliest due first."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tidemill.cli.connecting import (
    EndpointOption,
    FromOption,
    JsonOption,
    KeyOption,
    ToOption,
    connect,
    range_ms,
)
from tidemill.cli.output import console, relative_time
from tidemill.client.answers import Pending
from tidemill.core.durations import format_time


def pending(
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    key: KeyOption = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 20,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Show pending messages, earliest due first; with --json one object per line."""
    with connect(endpoint) as client:
        from_ms, to_ms = range_ms(client, start, end)
        found = client.pending(topic, key=key, start=from_ms, end=to_ms, limit=limit)
        if is_json:
            for message in found:
                print(json.dumps(_fields(message), ensure_ascii=False))
        else:
            status = client.status()
            _print(found, status.now_ms, limit)
    return 0


def _fields(message: Pending) -> dict[str, object]:
    fields = asdict(message)
    fields["message_id"] = fields.pop("id")
    fields["key"] = message.keys[0] if message.keys else None
    fields["deliver_at"] = format_time(message.deliver_at_ms)
    return fields


def _print(found: list[Pending], now_ms: int, limit: int) -> None:
    if not found:
        print("nothing that fits waits; `tidemill send TOPIC BODY --delay 30m` puts something in")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, justify in (("due", "left"), ("at", "left"), ("topic", "left"), ("key", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("body bytes", justify="right")
    table.add_column("id", overflow="fold")
    for message in found:
        table.add_row(
            relative_time(message.deliver_at_ms, now_ms),
            format_time(message.deliver_at_ms),
            message.topic,
            " ".join(message.keys),
            "" if message.body_bytes is None else f"{message.body_bytes:,}",
            message.id if not message.is_damaged else "[yellow]its bytes are damaged[/]",
        )
    console().print(table)
    if len(found) == limit:
        print(f"the first {limit}; see more with --limit, handles with --json")
