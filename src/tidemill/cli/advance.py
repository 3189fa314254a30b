"""`tidemill advance 3d`: move a simulated clock, with a bar while it takes long."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, duration_ms
from tidemill.cli.output import bar
from tidemill.client.client import Client
from tidemill.core.durations import format_duration, format_time

_LOOK_EVERY_S = 0.3


def advance(
    span: Annotated[str, typer.Argument(metavar="DURATION", help="How far: 500ms, 5s, 30m, 2h, 3d.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Move a simulated clock; returns when everything due by then is in its topic."""
    by_ms = duration_ms(span)
    with connect(endpoint) as client:
        now_ms = _watched(client, by_ms)
    print(json.dumps({"now_ms": now_ms}) if is_json else f"it is {format_time(now_ms)}")
    return 0


def _watched(client: Client, by_ms: int) -> int:
    """Ask for it and look where the clock is until it is there."""
    begun_ms = client.status().now_ms
    with ThreadPoolExecutor(1) as thread, bar("moving the clock", _pace) as moved:
        moving = thread.submit(client.advance, by_ms)
        while True:
            try:
                return moving.result(_LOOK_EVERY_S)
            except TimeoutError:
                if moving.done():
                    raise
                moved(client.status().now_ms - begun_ms, by_ms)


def _pace(ms_per_s: float) -> str:
    """How much simulated time passes in a second."""
    return f"{format_duration(round(ms_per_s))} a second"
