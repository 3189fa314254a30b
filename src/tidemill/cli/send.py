"""`tidemill send TOPIC BODY`: one message, now, after a delay, at a time or on a level."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tidemill.cli.connecting import (
    EndpointOption,
    JsonOption,
    clock_for_people_ms,
    connect,
    due_of,
    duration_ms,
    usage,
)
from tidemill.cli.output import due_words
from tidemill.core.durations import format_time
from tidemill.core.model import NO_OFFSET, NO_TIME_MS, SendResult

_ONCE = ("keep", "replace")


class SendCommand(TyperCommand):
    """Lets `--once` stand alone, which means *keep*."""

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


def send(
    topic: Annotated[str, typer.Argument(help="Made on first use.")],
    body: Annotated[str, typer.Argument(help="The message; '-' reads it from standard input.")],
    delay: Annotated[str | None, typer.Option(help="Deliver after: 90s, 30m, 2h, 3d.")] = None,
    at: Annotated[str | None, typer.Option(help="Deliver at: 2027-01-01T08:00:00+08:00.")] = None,
    jitter: Annotated[
        str | None, typer.Option(help="Random extra delay of at most this, after --delay or --at: 30s.")
    ] = None,
    level: Annotated[
        int | None, typer.Option(help="Deliver after a level's delay: 1, 2, … (`status --json` lists them).")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A key to find it by; may repeat.")] = None,
    once: Annotated[
        str | None, typer.Option(metavar="[replace]", help="Only one with this key waits; replace: move it.")
    ] = None,
    tag: Annotated[str, typer.Option(help="For consumers that filter.")] = "",
    prop: Annotated[list[str] | None, typer.Option("--prop", help="k=v; may repeat.")] = None,
    message_group: Annotated[str, typer.Option(help="FIFO group: its messages are delivered in order.")] = "",
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Send one message; durable when this returns."""
    if sum(choice is not None for choice in (delay, at, level)) > 1:
        raise usage("give only one of --delay, --at and --level")
    delay_ms, at_ms = due_of(delay, at)
    with connect(endpoint) as client:
        result = client.send(
            topic,
            sys.stdin.buffer.read() if body == "-" else body,
            delay=delay_ms,
            at=at_ms,
            jitter=None if jitter is None else duration_ms(jitter),
            level=level or 0,
            keys=key or (),
            once=once or False,
            tag=tag,
            properties=_properties(prop or []),
            message_group=message_group,
        )
        if is_json or not sys.stdout.isatty():
            print(json.dumps(result_fields(result)))
        else:
            _print_for_people(result, clock_for_people_ms(client))
    return 0


def _properties(pairs: Sequence[str]) -> dict[str, str]:
    if wrong := [pair for pair in pairs if pair.find("=") < 1]:
        raise usage(f"--prop {wrong[0]!r} is not of the form k=v")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def result_fields(result: SendResult) -> dict[str, object]:
    """A result as the JSON object that programs read."""
    is_timed, has_offset = result.deliver_at_ms != NO_TIME_MS, result.offset != NO_OFFSET
    return {
        "message_id": result.id,
        "topic": result.topic,
        "handle": str(result.handle) if result.handle is not None else None,
        "deliver_at": format_time(result.deliver_at_ms) if is_timed else None,
        "deliver_at_ms": result.deliver_at_ms if is_timed else None,
        "is_repeat": result.is_repeat,
        "note": result.note,
        "queue": result.queue if has_offset else None,
        "offset": result.offset if has_offset else None,
    }


def _print_for_people(result: SendResult, now_ms: int | None) -> None:
    verb = "was there already" if result.is_repeat else "sent"
    if result.handle is None:
        print(f"{verb}: {result.id}")
    else:
        print(f"{verb}: {result.id}, {due_words(result.deliver_at_ms, now_ms)}")
        print(f"handle: {result.handle}")
    if result.note:
        print(f"note: {result.note}")
