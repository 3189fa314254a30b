"""`tidemill advance 3d`: move a simulated clock."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, duration_ms
from tidemill.core.durations import format_time


def advance(
    span: Annotated[str, typer.Argument(metavar="DURATION", help="How far: 500ms, 5s, 30m, 2h, 3d.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Move a simulated clock; returns when everything due by then is in its topic."""
    with connect(endpoint) as client:
        now_ms = client.advance(duration_ms(span))
    print(json.dumps({"now_ms": now_ms}) if is_json else f"it is {format_time(now_ms)}")
    return 0
