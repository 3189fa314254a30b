"""`tidemill receive TOPIC --group G`: messages as JSON lines, each acknowledged once it is printed."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemill.cli.arguments import TopicArgument, duration_option, usage
from tidemill.cli.connecting import client_command
from tidemill.cli.output import remark, waiting
from tidemill.client.answers import Message
from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import as_duration_ms, format_duration
from tidemill.core.errors import TidemillError
from tidemill.core.limits import MAX_DELAY_MS

_WAIT_MAX = timedelta(seconds=20)
_BATCH = 32
_HALF_A_MINUTE: Any = "30s"


@client_command
def receive(
    client: Client,
    is_json: bool,
    topic: TopicArgument,
    group: Annotated[str, typer.Option(help="The consumer group.")],
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    wait: Annotated[
        timedelta, duration_option(help="Stop when nothing arrived for this long.")
    ] = _HALF_A_MINUTE,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Do not acknowledge: they are delivered again.")
    ] = False,
    invisible: Annotated[
        timedelta,
        duration_option(help="How long other consumers do not get them (the lease)."),
    ] = _HALF_A_MINUTE,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag; may repeat.")] = None,
) -> int:
    """Receive messages, one JSON object per line."""
    if not group:
        raise usage("--group is empty; name the consumer group")
    _check_lease(invisible)
    left, received, span = count, 0, format_duration(as_duration_ms(wait))
    while left is None or left > 0:
        batch = _BATCH if left is None else min(left, _BATCH)
        with waiting(f"waiting for messages of {topic}, at most {span}; Ctrl-C stops"):
            messages = _wait_for(client, topic, group, batch, wait, invisible=invisible, tags=tag or None)
        if not messages:
            break
        received += len(messages)
        _show(client, messages, no_ack)
        left = None if left is None else left - len(messages)
    if not received:
        remark(f"nothing arrived within {span}; `tidemill pending --topic {topic}` shows what is pending")
    return 0


def _check_lease(invisible: timedelta) -> None:
    if not 1 <= as_duration_ms(invisible) <= MAX_DELAY_MS:
        given_s, limit = invisible.total_seconds(), format_duration(MAX_DELAY_MS)
        raise usage(f"--invisible {given_s:.0f}s is not possible; use 1ms to {limit}")


def _show(client: Client, messages: Sequence[Message], no_ack: bool) -> None:
    """Print messages and acknowledge each; those that cannot be printed are returned, untried."""
    unseen = deque(messages)
    try:
        while unseen:
            print(json.dumps(_fields(unseen[0], no_ack), ensure_ascii=False), flush=True)
            message = unseen.popleft()
            if not no_ack:
                client.ack(message)
    finally:
        if unseen:
            with suppress(TidemillError):  # the first error matters more, and the leases end by themselves
                client.give_back(*unseen)


def _wait_for(
    client: Client, topic: str, group: str, count: int, wait: timedelta, **options: Any
) -> list[Message]:
    """The next messages; none if none arrive in time."""
    until_s = stopwatch_s() + wait.total_seconds()
    while True:
        left = max(timedelta(0), timedelta(seconds=until_s - stopwatch_s()))
        found = client.receive_batch(topic, group, count=count, wait=min(left, _WAIT_MAX), **options)
        if found or left <= _WAIT_MAX:
            return found


def _fields(message: Message, shows_ack_token: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "message_id": message.id,
        "key": message.key or None,
        "tag": message.tag or None,
        "body": None,
        "attempt": message.attempt,
        "deliver_at_ms": message.deliver_at_ms,
        "released_at_ms": message.released_at_ms,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    if len(message.keys) > 1:
        fields["keys"] = list(message.keys)
    if message.properties:
        fields["properties"] = dict(message.properties)
    if message.broker_properties:
        fields["broker_properties"] = dict(message.broker_properties)
    if shows_ack_token:
        fields["ack_token"] = message.ack_token
    return fields
