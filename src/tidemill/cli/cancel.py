"""`tidemill cancel TOPIC HANDLE | --key K | --from T0 --to T1`: exit 0 only if something was cancelled."""

from __future__ import annotations

from tidemill.cli.arguments import (
    FromOption,
    HandleArgument,
    KeyOption,
    RequestIdOption,
    ToOption,
    TopicArgument,
    check_choice,
    handle_of,
    on_clock,
)
from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, counted
from tidemill.client.client import Client
from tidemill.core.model import CancelAnswer


@client_command
def cancel(
    client: Client,
    topic: TopicArgument,
    handle: HandleArgument = None,
    key: KeyOption = None,
    start: FromOption = None,
    end: ToOption = None,
    request_id: RequestIdOption = None,
) -> Answer:
    """Cancel pending messages; exit 0 only if something was cancelled."""
    check_choice(handle, key, start, end)
    if handle is not None:
        answer = client.cancel(handle_of(topic, handle), request_id=request_id)
        return Answer({"answer": answer.value}, answer.value, answer is CancelAnswer.CANCELLED)
    count = client.cancel_where(
        topic, key=key, start=on_clock(client, start), end=on_clock(client, end), request_id=request_id
    )
    return Answer({"cancelled": count}, counted(count, "cancelled"), count > 0)
