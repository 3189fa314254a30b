"""`tidemill groups`: list with lag, set, reset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType

from tidemill.cli.arguments import Time, time_option, usage
from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, table
from tidemill.client.client import Client
from tidemill.core.answers import GroupInfo
from tidemill.core.durations import as_time_ms
from tidemill.core.errors import ForbiddenError

groups = typer.Typer(help="Consumer groups: list with lag, set, reset.")
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]


@groups.command("list")
@client_command
def list_groups(client: Client) -> Answer:
    """Show all groups and how far behind they are; with --json one object per line."""
    found = sorted(client.groups.list(), key=lambda group: group.name)
    return Answer([asdict(group) for group in found], lambda: _shown(found))


def _shown(found: list[GroupInfo]) -> Iterator[RenderableType]:
    if not found:
        yield "no groups; the first receive creates one"
        return
    rows = (row for group in found for row in _rows(group))
    yield table("group,>attempts,order,topic,>lag,>unsettled", rows)


def _rows(group: GroupInfo) -> Iterator[tuple[str, ...]]:
    head = (group.name, str(group.max_attempts), "fifo" if group.is_fifo else "")
    if not group.lag:
        yield head
    for topic, lag in sorted(group.lag.items()):
        yield (*head, topic, f"{lag:,}", f"{group.unsettled.get(topic, 0):,}")
        head = ("", "", "")


@groups.command("set")
@client_command
def set_group(
    client: Client,
    group: GroupArgument,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Deliveries before a message becomes a dead letter.")
    ] = None,
    fifo: Annotated[
        bool | None, typer.Option("--fifo/--no-fifo", help="Keep message groups in order.")
    ] = None,
    start: Annotated[str | None, typer.Option(help="Where it begins in a new topic: first or last.")] = None,
    backoff: Annotated[
        str | None, typer.Option(help="Pauses after failures, '10s 1m 5m'; '' for the default, 10s 30s 1m …")
    ] = None,
) -> Answer:
    """Create a group or change its settings."""
    if start not in (None, "first", "last"):
        raise usage(f"--start {start!r} is unknown; use first or last")
    known = client.groups.set(group, max_attempts=max_attempts, is_fifo=fifo, start=start, backoff=backoff)
    fifo_text, backoff_text = ", fifo" if known.is_fifo else "", f", back-off {known.backoff}"
    text = f"{known.name}: at most {known.max_attempts} attempts{fifo_text}"
    return Answer(asdict(known), text + (backoff_text if known.backoff else ""))


@groups.command("reset")
@client_command
def reset(
    client: Client,
    group: GroupArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[Time, time_option(help="Read again what was released at this time or later.")],
) -> Answer:
    """Let a group read a topic again from (or skip it to) a time."""
    is_new, at = _is_new(client, group), to.on_clock_of(client)
    client.groups.reset(group, topic, at)
    to_ms = as_time_ms(at)
    text = f"{group}{', a new group' if is_new else ''}: reads {topic} from {at}"
    return Answer({"group": group, "topic": topic, "to_ms": to_ms, "is_new": is_new}, text)


def _is_new(client: Client, group: str) -> bool:
    """Whether no group has this name yet. It may be a typing error, so the answer says it."""
    try:
        return group not in {known.name for known in client.groups.list()}
    except ForbiddenError:
        return False
