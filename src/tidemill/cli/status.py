"""`tidemill status [--watch]`: rates, pending, lateness, disk, pipeline health."""

from __future__ import annotations

import json
import threading

from tidemill.cli.arguments import WatchOption
from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, console
from tidemill.cli.status_picture import RATES, Seen, picture_of, table_of
from tidemill.cli.watching import EVERY_S, watch
from tidemill.client.client import Client
from tidemill.core.answers import BrokerStatus, Minute
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import ForbiddenError


@client_command
def status(client: Client, is_json: bool, is_watch: WatchOption = False) -> Answer | int:
    """Show counts, lateness, timer and disk."""
    if is_watch and is_json:
        _print_lines(client)
    elif is_watch:
        seen = Seen(str(client.endpoint))
        watch(console(), lambda: picture_of(_look(client, seen)))
    else:
        found = client.status()
        return Answer(found.fields, lambda: [table_of(found)])
    return 0


def _look(client: Client, seen: Seen) -> Seen:
    """Add the present state; what the caller may not read is left out."""
    status, now_s = client.status(), stopwatch_s()
    seen.add(status, now_s, client.topics.list(), _next_hour(client))
    return seen


def _next_hour(client: Client) -> list[Minute] | None:
    try:
        return client.forecast(horizon="1h")
    except ForbiddenError:
        return None


def _print_lines(client: Client) -> None:
    """One JSON object per line, with the rates since the line before."""
    pause = threading.Event()
    before, before_s = client.status(), stopwatch_s()
    while not pause.wait(EVERY_S):
        now, now_s = client.status(), stopwatch_s()
        rates = {name: _rate(name, before, now, now_s - before_s) for name in RATES}
        print(json.dumps({**now.fields, "per_second": rates}), flush=True)
        before, before_s = now, now_s


def _rate(name: str, before: BrokerStatus, now: BrokerStatus, seconds: float) -> float:
    return float(getattr(now, name) - getattr(before, name)) / seconds
