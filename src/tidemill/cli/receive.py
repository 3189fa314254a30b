"""`tidemill receive TOPIC --group G`: messages as JSON lines, each acknowledged once it is printed."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, connect, duration_ms, usage
from tidemill.cli.output import remark, waiting
from tidemill.client.answers import Message
from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import format_duration
from tidemill.core.errors import TidemillError
from tidemill.core.limits import MAX_DELAY_MS

_WAIT_MS_MAX = 20_000
_BATCH = 32


def receive(
    topic: Annotated[str, typer.Argument()],
    group: Annotated[str, typer.Option(help="The consumer group.")],
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    wait: Annotated[str, typer.Option(help="Stop when nothing arrived for this long.")] = "30s",
    no_ack: Annotated[bool, typer.Option("--no-ack", help="Do not ack: they are delivered again.")] = False,
    invisible: Annotated[
        str, typer.Option(help="How long other consumers do not get them (the lease).")
    ] = "30s",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag.")] = None,
    endpoint: EndpointOption = None,
    _is_json: Annotated[bool, typer.Option("--json", help="As it is in any case: JSON.")] = False,
) -> int:
    """Receive messages, one JSON object per line."""
    if not group:
        raise usage("--group is empty; name the consumer group")
    wait_ms, invisible_ms = duration_ms(wait), _lease_ms(invisible)
    left, came = count, 0
    with connect(endpoint) as client:
        while left is None or left > 0:
            batch = _BATCH if left is None else min(left, _BATCH)
            with waiting(f"waiting for messages of {topic}, at most {wait}; Ctrl-C stops"):
                messages = _wait_for(client, topic, group, batch, wait_ms, invisible_ms, tag)
            if not messages:
                break
            came += len(messages)
            _show(client, messages, no_ack)
            left = None if left is None else left - len(messages)
    if not came:
        remark(f"nothing came within {wait}; `tidemill pending --topic {topic}` shows what still waits")
    return 0


def _lease_ms(text: str) -> int:
    """`--invisible` in milliseconds, within what a lease may be."""
    lease_ms = duration_ms(text)
    if not 1 <= lease_ms <= MAX_DELAY_MS:
        raise usage(f"--invisible {text} is not possible; use 1ms to {format_duration(MAX_DELAY_MS)}")
    return lease_ms


def _show(client: Client, messages: Sequence[Message], no_ack: bool) -> None:
    """Print messages and acknowledge each; what nobody reads any more is given back, untried."""
    unseen = deque(messages)
    try:
        while unseen:
            print(json.dumps(_fields(unseen[0], no_ack), ensure_ascii=False), flush=True)
            message = unseen.popleft()
            if not no_ack:
                client.ack(message)
    finally:
        if unseen:
            with suppress(TidemillError):  # what ended this matters more, and their leases end by themselves
                client.give_back(*unseen)


def _wait_for(
    client: Client,
    topic: str,
    group: str,
    count: int,
    wait_ms: int,
    invisible_ms: int,
    tags: list[str] | None,
) -> list[Message]:
    """The next messages; nothing if none comes in time."""
    until_s = stopwatch_s() + wait_ms / 1000
    while True:
        left_ms = max(0, round((until_s - stopwatch_s()) * 1000))
        found = client.receive_batch(
            topic,
            group,
            count=count,
            wait=min(left_ms, _WAIT_MS_MAX),
            invisible=invisible_ms,
            tags=tags or None,
        )
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
