"""`tidemill topics`: list, create, delete, pause, resume, limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType

from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, table
from tidemill.client.client import Client
from tidemill.core.answers import TopicInfo
from tidemill.core.model import TopicType

topics = typer.Typer(help="Topics: list, create, delete, pause, resume, limit.")
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@topics.command("list")
@client_command
def list_topics(client: Client) -> Answer:
    """Show all topics with their counts; with --json one object per line."""
    found = sorted(client.topics.list(), key=lambda topic: topic.name)
    return Answer([asdict(topic) for topic in found], lambda: _shown(found))


def _shown(found: list[TopicInfo]) -> Iterator[RenderableType]:
    if not found:
        yield "no topics; the first send creates one"
        return
    yield table(
        "topic,type,>queues,>pending,>sent,>released,>cancelled,state",
        ((topic.name, topic.type.value, *_counts(topic), _state(topic)) for topic in found),
    )


def _counts(topic: TopicInfo) -> Iterator[str]:
    for count in (topic.queues, topic.pending, topic.sent, topic.released, topic.cancelled):
        yield f"{count:,}"


def _state(topic: TopicInfo) -> str:
    limited = f"at most {topic.release_rate_max:,}/s" if topic.release_rate_max else ""
    return f"{'paused' if topic.is_paused else ''} {limited}".strip()


@topics.command("create")
@client_command
def create(
    client: Client,
    name: NameArgument,
    kind: Annotated[TopicType, typer.Option("--type", help="Which messages it accepts.")] = TopicType.MIXED,
    queues: Annotated[int | None, typer.Option(min=1, max=1024, help="How many queues. [4]")] = None,
) -> Answer:
    """Create a topic; one that exists with the same settings is no error."""
    topic = client.topics.create(name, kind, queues=queues)
    return Answer(asdict(topic), f"{topic.name}: {topic.type.value}, {topic.queues} queues")


@topics.command("delete")
@client_command
def delete(
    client: Client,
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Cancel its pending messages first.")] = False,
) -> Answer:
    """Delete a topic."""
    cancelled = client.topics.delete(name, force=force)
    text = f"{name}: deleted" + (f", {cancelled:,} pending messages cancelled" if cancelled else "")
    return Answer({"name": name, "cancelled": cancelled}, text)


@topics.command("pause")
@client_command
def pause(client: Client, name: NameArgument) -> Answer:
    """Pause a topic's releases; what falls due meanwhile is released when it is resumed."""
    return Answer(asdict(client.topics.pause(name)), f"{name}: paused")


@topics.command("resume")
@client_command
def resume(client: Client, name: NameArgument) -> Answer:
    """Resume a topic's releases."""
    return Answer(asdict(client.topics.resume(name)), f"{name}: resumed")


@topics.command("limit")
@client_command
def limit(
    client: Client,
    name: NameArgument,
    per_second: Annotated[int, typer.Argument(min=0, help="Releases per second; 0: no limit.")],
) -> Answer:
    """Limit a topic's releases per second."""
    text = f"{name}: {f'at most {per_second:,} releases a second' if per_second else 'no limit'}"
    return Answer(asdict(client.topics.limit(name, per_second)), text)
