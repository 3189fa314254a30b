"""`tidemill dead-letters`, or `tidemill dlq`: list dead letters, resend them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType

from tidemill.cli.arguments import usage
from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, table
from tidemill.client.client import Client
from tidemill.core.answers import DeadLetter
from tidemill.core.durations import format_time

dead_letters = typer.Typer(help="Dead letters: list, resend. Short: dlq.")

_BODY_CHARS = 40


@dead_letters.command("list")
@client_command
def list_letters(
    client: Client,
    group: Annotated[str | None, typer.Option(help="Of one group; without: of all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
) -> Answer:
    """Show messages whose attempts are used up, oldest first; with --json one object per line."""
    found = client.dead_letters.list(group, limit=limit)
    fields = [{**asdict(letter), "body": letter.body.decode(errors="replace")} for letter in found]
    return Answer(fields, lambda: _shown(found))


def _shown(found: list[DeadLetter]) -> Iterator[RenderableType]:
    if not found:
        yield "no dead letters"
        return
    yield table(
        "id,group,topic,key,>attempts,died,body",
        (
            (
                letter.id,
                letter.group,
                letter.topic,
                " ".join(letter.keys),
                str(letter.attempts),
                format_time(letter.died_at_ms),
                letter.body[:_BODY_CHARS].decode(errors="replace"),
            )
            for letter in found
        ),
    )


@dead_letters.command("resend")
@client_command
def resend(
    client: Client,
    group: Annotated[str, typer.Option(help="Their consumer group.")],
    is_all: Annotated[bool, typer.Option("--all", help="All of the group.")] = False,
    ids: Annotated[list[str] | None, typer.Option("--id", help="The id of one; may repeat.")] = None,
) -> Answer:
    """Deliver dead letters to their group again, with all attempts left."""
    if is_all == bool(ids):
        raise usage("give either --all or --id")
    count = client.dead_letters.resend(group, ids or None)
    return Answer({"resent": count}, f"{count} resent to {group}", count > 0)
