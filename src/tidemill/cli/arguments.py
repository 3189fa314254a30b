"""Arguments that several commands share: durations, times, handles and the options made of them.

A duration is checked where it is given and stays a text, such as `90s`, and a time becomes ISO 8601 with its
zone: both are for the client as they are, and no unit is ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tidemill.client.client import Client
from tidemill.core.durations import as_shift_ms, format_time, parse_duration_ms, parse_time_ms
from tidemill.core.errors import RequestError
from tidemill.core.model import Handle


def usage(text: str) -> typer.BadParameter:
    """An error of the command line itself (exit code 2)."""
    return typer.BadParameter(text)


_YEAR_2100_MS = 4_102_444_800_000  # relative times are checked as if it was then


@dataclass(frozen=True, slots=True)
class Time:
    """A time in Unix milliseconds or, if it is relative (`+30m`, `now`), after the broker's present time."""

    ms: int
    is_relative: bool

    def on_clock_of(self, client: Client) -> str:
        """The time in ISO 8601; for a relative one the broker's clock is read."""
        return format_time(self.ms + (client.status().now_ms if self.is_relative else 0))


def duration(text: str) -> str:
    """A duration such as `90s` or `1h30m`."""
    try:
        parse_duration_ms(text)
    except RequestError as error:
        raise usage(str(error)) from error
    return text


def shift(text: str) -> str:
    """A duration with a sign: `-10m` is ten minutes earlier."""
    try:
        as_shift_ms(text)
    except RequestError as error:
        raise usage(str(error)) from error
    return text


def time(text: str) -> Time:
    """A time: ISO 8601, Unix seconds, `now`, or `+30m`."""
    try:
        parsed = Time(parse_time_ms(text, 0), text.strip().lower()[:1] in ("+", "n"))
        format_time(parsed.ms + (_YEAR_2100_MS if parsed.is_relative else 0))
    except RequestError as error:
        raise usage(str(error)) from error
    except (OverflowError, ValueError) as error:
        raise usage(f"{text} is after the year 9999; use an earlier time") from error
    return parsed


def on_clock(client: Client, given: Time | None) -> str | None:
    """The time that was given, if any; a relative one counts from the broker's clock."""
    return None if given is None else given.on_clock_of(client)


def due_of(delay: str | None, at: Time | None) -> tuple[str | None, str | None]:
    """`--delay` and `--at` as a delay and a time. `--at +30m` is a delay: the broker knows its own clock.

    So a caller that may only send or reschedule needs no permission to read the clock.
    """
    if at is None:
        return delay, None
    return (f"{at.ms}ms", None) if at.is_relative else (None, format_time(at.ms))


def handle_of(topic: str, text: str) -> Handle:
    """The handle, which must be one of this topic."""
    handle = Handle.parse(text)
    if handle.topic != topic:
        raise RequestError(f"this handle belongs to topic {handle.topic!r}, not {topic!r}; name that one")
    return handle


def check_choice(handle: str | None, key: str | None, start: Time | None, end: Time | None) -> None:
    """Require exactly one way to select messages."""
    if (start is None) != (end is None):
        raise usage("a range needs both --from and --to")
    if sum(choice is not None for choice in (handle, key, start)) != 1:
        raise usage("pass exactly one of HANDLE, --key, --from with --to")


def duration_option(*name: str, help: str) -> Any:  # noqa: A002 - named as in typer
    return typer.Option(*name, parser=duration, metavar="DURATION", help=help)


def time_option(*name: str, help: str) -> Any:  # noqa: A002 - named as in typer
    return typer.Option(*name, parser=time, metavar="TIME", help=help)


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
HandleArgument = Annotated[str | None, typer.Argument(metavar="HANDLE", help="As printed by `send`.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Only of this topic.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="All messages with this key.")]
FromOption = Annotated[
    Time | None, time_option("--from", help="Due at or after: ISO 8601, +30m, now, or Unix seconds.")
]
ToOption = Annotated[Time | None, time_option("--to", help="Due before.")]
DelayOption = Annotated[str | None, duration_option("--delay", help="Due after: 90s, 30m, 2h, 3d.")]
AtOption = Annotated[Time | None, time_option("--at", help="Due at: 2027-01-01T08:00:00+08:00, or +30m.")]
RequestIdOption = Annotated[
    str | None,
    typer.Option(
        "--request-id", help="Repeated within an hour with the same arguments, it gets the first answer."
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Refresh every second until interrupted.")]
