"""`tidemill reschedule TOPIC HANDLE | --key K | --from T0 --to T1  --delay|--at|--by`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from tidemill.cli.arguments import (
    AtOption,
    DelayOption,
    FromOption,
    HandleArgument,
    KeyOption,
    RequestIdOption,
    ToOption,
    TopicArgument,
    check_choice,
    due_of,
    handle_of,
    on_clock,
    shift,
    usage,
)
from tidemill.cli.connecting import client_command, clock_of
from tidemill.cli.output import Answer, counted, due_words
from tidemill.client.client import Client
from tidemill.core.answers import Moved
from tidemill.core.durations import format_time


@client_command
def reschedule(
    client: Client,
    topic: TopicArgument,
    handle: HandleArgument = None,
    key: KeyOption = None,
    start: FromOption = None,
    end: ToOption = None,
    delay: DelayOption = None,
    at: AtOption = None,
    by: Annotated[
        str | None,
        typer.Option(parser=shift, metavar="DURATION", help="Later by; earlier: --by=-10m."),
    ] = None,
    request_id: RequestIdOption = None,
) -> Answer:
    """Move pending messages to another time; exit 0 only if something was moved."""
    check_choice(handle, key, start, end)
    if sum(choice is not None for choice in (delay, at, by)) != 1:
        raise usage("pass exactly one of --delay, --at, --by")
    after, time = due_of(delay, at)
    if handle is not None:
        moved = client.reschedule(
            handle_of(topic, handle), at=time, delay=after, by=by, request_id=request_id
        )
        return Answer(_fields(moved), lambda: _lines(moved, client), moved.is_moved)
    count = client.reschedule_where(
        topic,
        key=key,
        start=on_clock(client, start),
        end=on_clock(client, end),
        at=time,
        delay=after,
        by=by,
        request_id=request_id,
    )
    return Answer({"moved": count}, counted(count, "moved"), count > 0)


def _fields(moved: Moved) -> dict[str, object]:
    answer = moved.answer.value if moved.answer is not None else "moved"
    fields: dict[str, object] = {
        "answer": answer,
        "handle": None if moved.handle is None else str(moved.handle),
        "deliver_at_ms": moved.deliver_at_ms,
    }
    if moved.deliver_at_ms is not None:
        fields["deliver_at"] = format_time(moved.deliver_at_ms)
    return fields


def _lines(moved: Moved, client: Client) -> Iterator[str]:
    if moved.deliver_at_ms is None:
        yield moved.answer.value if moved.answer is not None else "unknown"
    else:
        yield due_words(moved.deliver_at_ms, clock_of(client))
        yield f"handle: {moved.handle}"
