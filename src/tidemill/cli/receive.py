"""`tidemill receive TOPIC --group G`: messages as JSON lines, each acknowledged once it is printed."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from tidemill.cli.arguments import TopicArgument, duration_option, usage
from tidemill.cli.connecting import client_command
from tidemill.cli.output import remark, waiting
from tidemill.client.client import Client
from tidemill.core.answers import Message
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import format_duration, parse_duration_ms
from tidemill.core.errors import TidemillError
from tidemill.core.limits import MAX_DELAY_MS

_WAIT_MS_MAX = 20_000
_BATCH = 32


@client_command
def receive(
    client: Client,
    is_json: bool,
    topic: TopicArgument,
    group: Annotated[str, typer.Option(help="The consumer group.")],
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    wait: Annotated[str, duration_option(help="Stop when nothing arrived for this long.")] = "30s",
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Do not acknowledge: they are delivered again.")
    ] = False,
    lease: Annotated[
        str,
        duration_option(help="How long other consumers do not get them (the lease)."),
    ] = "30s",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag; may repeat.")] = None,
) -> int:
    """Receive messages, one JSON object per line."""
    if not group:
        raise usage("--group is empty; name the consumer group")
    if not 1 <= parse_duration_ms(lease) <= MAX_DELAY_MS:
        limit = format_duration(MAX_DELAY_MS)
        raise usage(f"--lease {lease} is not possible; use 1ms to {limit}")
    left, received = count, 0
    while left is None or left > 0:
        batch = _BATCH if left is None else min(left, _BATCH)
        with waiting(f"waiting for messages of {topic}, at most {wait}; Ctrl-C stops"):
            messages = _wait_for(client, topic, group, batch, wait, lease=lease, tags=tag or None)
        if not messages:
            break
        received += len(messages)
        _show(client, messages, no_ack)
        left = None if left is None else left - len(messages)
    if not received:
        remark(f"nothing arrived within {wait}; `tidemill pending --topic {topic}` shows what is pending")
    return 0


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
                client.requeue(*unseen)


def _wait_for(client: Client, topic: str, group: str, count: int, wait: str, **options: Any) -> list[Message]:
    """The next messages; none if none arrive in time."""
    until_s = stopwatch_s() + parse_duration_ms(wait) / 1000
    while True:
        left_ms = max(0, round((until_s - stopwatch_s()) * 1000))
        wait = f"{min(left_ms, _WAIT_MS_MAX)}ms"
        found = client.receive_batch(topic, group, count=count, wait=wait, **options)
        if found or left_ms <= _WAIT_MS_MAX:
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
