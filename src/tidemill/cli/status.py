"""`tidemill status [--watch]`: rates, pending, lateness, disk, pipeline health."""

from __future__ import annotations

import json
import threading
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect
from tidemill.cli.output import console
from tidemill.cli.status_picture import RATES, Seen, picture_of, table_of
from tidemill.cli.watching import EVERY_S, watch
from tidemill.client.answers import BrokerStatus, Minute
from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import ForbiddenError

_HORIZON_MS = 3_600_000


def status(
    is_watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until interrupted.")
    ] = False,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Show counts, lateness, timer and disk."""
    with connect(endpoint) as client:
        if is_watch and is_json:
            _print_lines(client)
        elif is_watch:
            seen = Seen(str(client.endpoint))
            watch(console(), lambda: picture_of(_look(client, seen)))
        elif is_json:
            print(json.dumps(client.status().fields))
        else:
            console().print(table_of(client.status()))
    return 0


def _look(client: Client, seen: Seen) -> Seen:
    """Look once more; what the caller may not see is left out of the picture."""
    status, now_s = client.status(), stopwatch_s()
    seen.add(status, now_s, client.topics(), _next_hour(client))
    return seen


def _next_hour(client: Client) -> list[Minute] | None:
    try:
        return client.forecast(horizon=_HORIZON_MS)
    except ForbiddenError:
        return None


def _print_lines(client: Client) -> None:
    """One JSON object a line, with the rates since the last."""
    pause = threading.Event()
    before, before_s = client.status(), stopwatch_s()
    while not pause.wait(EVERY_S):
        now, now_s = client.status(), stopwatch_s()
        rates = {name: _rate(name, before, now, now_s - before_s) for name in RATES}
        print(json.dumps({**now.fields, "per_second": rates}), flush=True)
        before, before_s = now, now_s


def _rate(name: str, before: BrokerStatus, now: BrokerStatus, seconds: float) -> float:
    return float(getattr(now, name) - getattr(before, name)) / seconds
