"""`tidemill send TOPIC BODY`: one message, now, after a delay, at a time or on a level."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tidemill.cli.arguments import AtOption, DelayOption, due_of, duration_option, usage
from tidemill.cli.connecting import client_command, clock_of
from tidemill.cli.output import Answer, due_words
from tidemill.client.client import Client
from tidemill.core.durations import format_time
from tidemill.core.model import SendResult

_ONCE = ("keep", "replace")
JitterOption = Annotated[
    str | None, duration_option("--jitter", help="Random extra delay, at most this: 30s.")
]


class SendCommand(TyperCommand):
    """Accepts `--once` without a value, which means *keep*."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_once(args))


COMMAND_CLASS = SendCommand


def _with_once(args: Sequence[str]) -> list[str]:
    options = list(args[: args.index("--")]) if "--" in args else list(args)
    rest = list(args[len(options) :])
    for index, word in enumerate(options):
        if word == "--once" and (index + 1 == len(options) or options[index + 1] not in _ONCE):
            return [*options[: index + 1], "keep", *options[index + 1 :], *rest]
    return [*options, *rest]


@client_command
def send(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Created on first use.")],
    body: Annotated[
        str, typer.Argument(metavar="BODY", help="The message; '-' reads it from standard input.")
    ],
    delay: DelayOption = None,
    at: AtOption = None,
    jitter: JitterOption = None,
    level: Annotated[
        int | None, typer.Option(help="Due after a level's delay: 1, 2, … (`status --json` lists them).")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A key to find it by; may repeat.")] = None,
    once: Annotated[
        str | None,
        typer.Option(metavar="[replace]", help="At most one pending message per key; replace: move it."),
    ] = None,
    tag: Annotated[str, typer.Option(help="A tag that consumers can filter by.")] = "",
    prop: Annotated[list[str] | None, typer.Option("--prop", help="A property, k=v; may repeat.")] = None,
    message_group: Annotated[str, typer.Option(help="FIFO group: its messages are delivered in order.")] = "",
) -> Answer:
    """Send one message; durable when this returns."""
    if sum(choice is not None for choice in (delay, at, level)) > 1:
        raise usage("pass only one of --delay, --at and --level")
    after, time = due_of(delay, at)
    result = client.send(
        topic,
        sys.stdin.buffer.read() if body == "-" else body,
        delay=after,
        at=time,
        jitter=jitter,
        level=level or 0,
        keys=key or (),
        once=once or False,
        tag=tag,
        properties=_properties(prop or []),
        message_group=message_group,
    )
    return Answer(_fields(result), lambda: _lines(result, client), is_json_in_pipe=True)


def _properties(pairs: Sequence[str]) -> dict[str, str]:
    if wrong := [pair for pair in pairs if pair.find("=") < 1]:
        raise usage(f"--prop {wrong[0]!r} is not of the form k=v")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _fields(result: SendResult) -> dict[str, object]:
    due_ms = result.deliver_at_ms
    return {
        "message_id": result.id,
        "topic": result.topic,
        "handle": str(result.handle) if result.handle is not None else None,
        "deliver_at": None if due_ms is None else format_time(due_ms),
        "deliver_at_ms": due_ms,
        "is_repeat": result.is_repeat,
        "note": result.note,
        "queue": result.queue,
        "offset": result.offset,
    }


def _lines(result: SendResult, client: Client) -> Iterator[str]:
    verb = "was there already" if result.is_repeat else "sent"
    if result.deliver_at_ms is None:
        yield f"{verb}: {result.id}"
    else:
        yield f"{verb}: {result.id}, {due_words(result.deliver_at_ms, clock_of(client))}"
        yield f"handle: {result.handle}"
    if result.note:
        yield f"note: {result.note}"
