"""`tidemill advance 3d`: move a simulated clock, with a bar while it takes long."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli.arguments import duration
from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, bar, watched
from tidemill.client.client import Client
from tidemill.core.durations import format_duration, format_time, parse_duration_ms


@client_command
def advance(
    client: Client,
    span: Annotated[
        str,
        typer.Argument(metavar="DURATION", parser=duration, help="How far: 500ms, 5s, 30m, 2h, 3d."),
    ],
) -> Answer:
    """Move a simulated clock; returns when everything due by then is in its topic."""
    begun_ms, by_ms = client.status().now_ms, parse_duration_ms(span)
    with bar("moving the clock", _pace) as moved:
        now_ms = watched(
            lambda: client.admin.advance(span), lambda: moved(client.status().now_ms - begun_ms, by_ms)
        )
    return Answer({"now_ms": now_ms}, f"it is {format_time(now_ms)}")


def _pace(ms_per_s: float) -> str:
    """How much simulated time passes in a second."""
    return f"{format_duration(round(ms_per_s))} a second"
