"""`tidemill topics`: list, create, delete, pause, resume, limit."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tidemill.cli.connecting import EndpointOption, JsonOption, connect
from tidemill.cli.output import console
from tidemill.client.answers import TopicInfo
from tidemill.core.model import TopicType

topics = typer.Typer(help="Topics: list, create, delete, pause, resume, limit.")
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@topics.command("list")
def list_topics(endpoint: EndpointOption = None, is_json: JsonOption = False) -> int:
    """Show all topics and what waits for them; with --json one object per line."""
    with connect(endpoint) as client:
        found = sorted(client.topics(), key=lambda topic: topic.name)
    if is_json:
        for topic in found:
            print(json.dumps(asdict(topic)))
    else:
        _print(found)
    return 0


def _print(found: list[TopicInfo]) -> None:
    if not found:
        print("no topics; the first send makes one")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("topic", overflow="fold")
    table.add_column("type")
    for name in ("queues", "pending", "sent", "released", "cancelled"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for topic in found:
        state = "paused" if topic.is_paused else ""
        if topic.release_rate_max:
            state = f"{state} at most {topic.release_rate_max:,}/s".strip()
        counts = (topic.queues, topic.pending, topic.sent, topic.released, topic.cancelled)
        table.add_row(topic.name, topic.type.value, *(f"{count:,}" for count in counts), state)
    console().print(table)


@topics.command("create")
def create(
    name: NameArgument,
    kind: Annotated[TopicType, typer.Option("--type", help="What it takes.")] = TopicType.MIXED,
    queues: Annotated[int | None, typer.Option(min=1, max=1024, help="How many queues. [4]")] = None,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Make a topic; the same again is no error."""
    with connect(endpoint) as client:
        topic = client.create_topic(name, kind, queues=queues)
    text = f"{topic.name}: {topic.type.value}, {topic.queues} queues"
    print(json.dumps(asdict(topic)) if is_json else text)
    return 0


@topics.command("delete")
def delete(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Also while messages wait: cancels them.")] = False,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Delete a topic."""
    with connect(endpoint) as client:
        cancelled = client.delete_topic(name, force=force)
    text = f"{name}: deleted" + (f", {cancelled:,} waiting messages cancelled" if cancelled else "")
    print(json.dumps({"name": name, "cancelled": cancelled}) if is_json else text)
    return 0


@topics.command("pause")
def pause(name: NameArgument, endpoint: EndpointOption = None, is_json: JsonOption = False) -> int:
    """Hold a topic's releases; what falls due meanwhile goes when it is resumed."""
    with connect(endpoint) as client:
        topic = client.pause_topic(name)
    print(json.dumps(asdict(topic)) if is_json else f"{name}: paused")
    return 0


@topics.command("resume")
def resume(name: NameArgument, endpoint: EndpointOption = None, is_json: JsonOption = False) -> int:
    """Let a topic's releases go on."""
    with connect(endpoint) as client:
        topic = client.resume_topic(name)
    print(json.dumps(asdict(topic)) if is_json else f"{name}: resumed")
    return 0


@topics.command("limit")
def limit(
    name: NameArgument,
    per_second: Annotated[int, typer.Argument(min=0, help="Releases a second; 0: no limit.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Bound a topic's releases a second."""
    with connect(endpoint) as client:
        topic = client.limit_topic(name, per_second)
    text = f"{name}: {f'at most {per_second:,} releases a second' if per_second else 'no limit'}"
    print(json.dumps(asdict(topic)) if is_json else text)
    return 0
