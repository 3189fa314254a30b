"""`tidemill cancel TOPIC HANDLE | --key K | --from T0 --to T1`: exit 0 only if something was cancelled."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tidemill.cli.connecting import (
    EndpointOption,
    FromOption,
    JsonOption,
    KeyOption,
    RequestIdOption,
    ToOption,
    connect,
    range_ms,
    usage,
)
from tidemill.cli.output import counted
from tidemill.core.errors import RequestError
from tidemill.core.model import CancelAnswer, Handle

HandleArgument = Annotated[str | None, typer.Argument(help="The handle that the send answered with.")]


def cancel(
    topic: Annotated[str, typer.Argument()],
    handle: HandleArgument = None,
    key: KeyOption = None,
    start: FromOption = None,
    end: ToOption = None,
    request_id: RequestIdOption = None,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Cancel pending messages; exit 0 only if something was cancelled."""
    check_choice(handle, key, start, end)
    with connect(endpoint) as client:
        if handle is not None:
            answer = client.cancel(handle_of(topic, handle), request_id=request_id)
            print(json.dumps({"answer": answer.value}) if is_json else answer.value)
            return 0 if answer is CancelAnswer.CANCELLED else 1
        from_ms, to_ms = range_ms(client, start, end)
        count = client.cancel_where(topic, key=key, start=from_ms, end=to_ms, request_id=request_id)
    print(json.dumps({"cancelled": count}) if is_json else counted(count, "cancelled"))
    return 0 if count else 1


def check_choice(handle: str | None, key: str | None, start: str | None, end: str | None) -> None:
    """Require exactly one way to select messages."""
    if (start is None) != (end is None):
        raise usage("a range needs both --from and --to")
    if sum(choice is not None for choice in (handle, key, start)) != 1:
        raise usage("pass exactly one of HANDLE, --key, --from with --to")


def handle_of(topic: str, text: str) -> Handle:
    """The handle, which must be one of this topic."""
    handle = Handle.parse(text)
    if handle.topic != topic:
        raise RequestError(f"this handle belongs to topic {handle.topic!r}, not {topic!r}; name that one")
    return handle
