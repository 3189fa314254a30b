"""`tidemill dead-letters`, or `tidemill dlq`: list dead letters, resend them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, usage
from tidemill.cli.output import console
from tidemill.client.answers import DeadLetter
from tidemill.core.durations import format_time

dead_letters = typer.Typer(help="Dead letters: list, resend. Short: dlq.")

_BODY_CHARS = 40


@dead_letters.command("list")
def list_letters(
    group: Annotated[str | None, typer.Option(help="Of one group; without: of all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Show messages that a group gave up on, oldest first; with --json one object per line."""
    with connect(endpoint) as client:
        found = client.dead_letters(group, limit=limit)
    if is_json:
        for letter in found:
            print(json.dumps(_fields(letter)))
    elif found:
        console().print(_table(found))
    else:
        print("no dead letters")
    return 0


@dead_letters.command("resend")
def resend(
    group: Annotated[str, typer.Option(help="The group that gave up on them.")],
    is_all: Annotated[bool, typer.Option("--all", help="All of the group.")] = False,
    ids: Annotated[list[str] | None, typer.Option("--id", help="The id of one; may repeat.")] = None,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Give dead letters to their group once more, with all attempts before them."""
    if is_all == bool(ids):
        raise usage("give either --all or --id")
    with connect(endpoint) as client:
        count = client.resend_dead_letters(group, ids or None)
    print(json.dumps({"resent": count}) if is_json else f"{count} resent to {group}")
    return 0 if count else 1


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {**asdict(letter), "body": letter.body.decode(errors="replace")}


def _table(found: list[DeadLetter]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "group", "topic", "key", "attempts", "died", "body"):
        table.add_column(name, overflow="fold", justify="right" if name == "attempts" else "left")
    for letter in found:
        body = letter.body[:_BODY_CHARS].decode(errors="replace")
        died = format_time(letter.died_at_ms)
        keys = " ".join(letter.keys)
        table.add_row(letter.id, letter.group, letter.topic, keys, str(letter.attempts), died, body)
    return table
