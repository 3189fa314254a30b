"""`tidemill groups`: list with lag, set, reset."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, moment_ms, usage
from tidemill.cli.output import console
from tidemill.client.answers import GroupInfo
from tidemill.client.client import Client
from tidemill.core.errors import ForbiddenError

groups = typer.Typer(help="Consumer groups: list with lag, set, reset.")


@groups.command("list")
def list_groups(endpoint: EndpointOption = None, is_json: JsonOption = False) -> int:
    """Show all groups and how far behind they are; with --json one object per line."""
    with connect(endpoint) as client:
        found = sorted(client.groups(), key=lambda group: group.name)
    if is_json:
        for group in found:
            print(json.dumps(asdict(group)))
    else:
        _print(found)
    return 0


def _print(found: list[GroupInfo]) -> None:
    if not found:
        print("no groups; the first receive makes one")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("attempts", justify="right")
    table.add_column("order")
    table.add_column("topic", overflow="fold")
    table.add_column("lag", justify="right")
    table.add_column("unsettled", justify="right")
    for group in found:
        head = (group.name, str(group.max_attempts), "fifo" if group.is_fifo else "")
        rows = [(topic, group.lag[topic], group.unsettled.get(topic, 0)) for topic in sorted(group.lag)]
        if not rows:
            table.add_row(*head)
        for index, (topic, lag, unsettled) in enumerate(rows):
            table.add_row(*(head if not index else ("", "", "")), topic, f"{lag:,}", f"{unsettled:,}")
    console().print(table)


@groups.command("set")
def set_group(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Then to the dead letters.")] = None,
    fifo: Annotated[bool | None, typer.Option("--fifo/--no-fifo", help="Keep groups in order.")] = None,
    start: Annotated[str | None, typer.Option(help="Where it begins in a new topic: first or last.")] = None,
    backoff: Annotated[
        str | None, typer.Option(help="Pauses after failures, '10s 1m 5m'; '' for the default, 10s 30s 1m …")
    ] = None,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Make a group or change its settings."""
    if start not in (None, "first", "last"):
        raise usage(f"--start {start!r} is unknown; use first or last")
    with connect(endpoint) as client:
        known = client.set_group(group, max_attempts=max_attempts, is_fifo=fifo, start=start, backoff=backoff)
    fifo_text, backoff_text = ", fifo" if known.is_fifo else "", f", back-off {known.backoff}"
    text = f"{known.name}: at most {known.max_attempts} attempts{fifo_text}"
    text += backoff_text if known.backoff else ""
    print(json.dumps(asdict(known)) if is_json else text)
    return 0


@groups.command("reset")
def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[str, typer.Option(help="A time: read again from what was released then.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Let a group read a topic again from (or skip it to) a time."""
    with connect(endpoint) as client:
        is_new = _is_new(client, group)
        to_ms = moment_ms(client, to)
        client.reset_group(group, topic, to_ms)
    text = f"{group}{', a new group' if is_new else ''}: reads {topic} from {to}"
    fields = {"group": group, "topic": topic, "to_ms": to_ms, "is_new": is_new}
    print(json.dumps(fields) if is_json else text)
    return 0


def _is_new(client: Client, group: str) -> bool:
    """Whether a name is that of no group so far: perhaps a slip of the pen, so it is said."""
    try:
        return group not in {known.name for known in client.groups()}
    except ForbiddenError:
        return False  # who may not look is not told
