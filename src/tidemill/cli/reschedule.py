"""`tidemill reschedule TOPIC HANDLE | --key K | --from T0 --to T1  --delay|--at|--by`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tidemill.cli.cancel import HandleArgument, check_choice, handle_of
from tidemill.cli.connecting import (
    EndpointOption,
    FromOption,
    JsonOption,
    KeyOption,
    RequestIdOption,
    ToOption,
    clock_for_people_ms,
    connect,
    due_of,
    range_ms,
    usage,
)
from tidemill.cli.output import counted, due_words
from tidemill.client.answers import Moved
from tidemill.core.durations import as_shift_ms, format_time
from tidemill.core.errors import RequestError


def reschedule(
    topic: Annotated[str, typer.Argument()],
    handle: HandleArgument = None,
    key: KeyOption = None,
    start: FromOption = None,
    end: ToOption = None,
    delay: Annotated[str | None, typer.Option(help="This long from now.")] = None,
    at: Annotated[str | None, typer.Option(help="At this time.")] = None,
    by: Annotated[str | None, typer.Option(help="Later by this; earlier with a minus: --by=-10m.")] = None,
    request_id: RequestIdOption = None,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Move pending messages to another time; exit 0 only if something was moved."""
    check_choice(handle, key, start, end)
    if sum(choice is not None for choice in (delay, at, by)) != 1:
        raise usage("pass exactly one of --delay, --at, --by")
    with connect(endpoint) as client:
        delay_ms, at_ms = due_of(delay, at)
        by_ms = None if by is None else _signed_ms(by)
        if handle is not None:
            moved = client.reschedule(
                handle_of(topic, handle), at=at_ms, delay=delay_ms, by=by_ms, request_id=request_id
            )
            _print(moved, is_json, None if is_json else clock_for_people_ms(client))
            return 0 if moved.is_moved else 1
        from_ms, to_ms = range_ms(client, start, end)
        count = client.reschedule_where(
            topic,
            key=key,
            start=from_ms,
            end=to_ms,
            at=at_ms,
            delay=delay_ms,
            by=by_ms,
            request_id=request_id,
        )
    print(json.dumps({"moved": count}) if is_json else counted(count, "moved"))
    return 0 if count else 1


def _signed_ms(text: str) -> int:
    try:
        return as_shift_ms(text)
    except RequestError as error:
        raise usage(f"--by: {error}") from error


def _print(moved: Moved, is_json: bool, now_ms: int | None) -> None:
    if is_json:
        answer = moved.answer.value if moved.answer is not None else "moved"
        fields = {"answer": answer, "handle": moved.handle, "deliver_at_ms": moved.deliver_at_ms}
        if moved.deliver_at_ms is not None:
            fields["deliver_at"] = format_time(moved.deliver_at_ms)
        print(json.dumps(fields))
    elif moved.deliver_at_ms is None:
        print(moved.answer.value if moved.answer is not None else "unknown")
    else:
        print(due_words(moved.deliver_at_ms, now_ms))
        print(f"handle: {moved.handle}")
