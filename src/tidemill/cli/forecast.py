"""`tidemill forecast [--watch]`: how much falls due when, drawn as bars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, duration_ms, usage
from tidemill.cli.output import console, relative_time
from tidemill.cli.pictures import lying_bar, put_together
from tidemill.cli.watching import watch
from tidemill.client.answers import Minute
from tidemill.client.client import Client
from tidemill.core.durations import format_duration, format_time
from tidemill.core.limits import DAY_MS, HORIZON_MS_MAX, MINUTE_MS

_ROWS = 30  # and one for the rest of the minute under way
_BESIDE_CHARS = 36  # what stands left and right of a bar
_BAR_CHARS_MIN = 10
_BARS = r"[\u2588-\u258f]+"  # the block characters that bars are made of


def forecast(
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    horizon: Annotated[str, typer.Option(help="How far to look.")] = "1h",
    is_watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until interrupted.")
    ] = False,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Show how many messages fall due when: one row per minute, or per several minutes.

    At most 30 rows are drawn; the first line says how many minutes a row has. --json has every minute.
    """
    horizon_ms = duration_ms(horizon)
    if horizon_ms <= 0:
        raise usage(f"--horizon {horizon} is no span to look at; write it like 30m, 2h or 3d")
    if horizon_ms > HORIZON_MS_MAX:
        raise usage(f"--horizon {horizon} is too far to look; use at most {format_duration(HORIZON_MS_MAX)}")
    screen = console()
    width = max(_BAR_CHARS_MIN, screen.width - _BESIDE_CHARS)
    with connect(endpoint) as client:
        if is_json:
            minutes = client.forecast(topic, horizon=horizon_ms)
            print(json.dumps([{"from_ms": m.from_ms, "due": m.due} for m in minutes]))
        elif is_watch:
            watch(screen, lambda: _picture(client, topic, horizon_ms, width))
        else:
            screen.print(_picture(client, topic, horizon_ms, width))
    return 0


def _picture(client: Client, topic: str | None, horizon_ms: int, width: int) -> Text:
    minutes = client.forecast(topic, horizon=horizon_ms)
    return painted(drawn(minutes, client.status().now_ms, width))


def painted(lines: Sequence[str]) -> Text:
    """The lines of a forecast with their bars in colour."""
    picture = Text("\n".join(lines), no_wrap=True)
    picture.highlight_regex(_BARS, "cyan")
    return picture


def drawn(minutes: Sequence[Minute], now_ms: int, width: int) -> list[str]:
    """The forecast as lines of text: at most a screenful, minutes put together where there are more."""
    step = max(1, -(-(len(minutes) - 1) // _ROWS))
    sums = put_together([minute.due for minute in minutes], step)
    span = format_duration(step * MINUTE_MS)
    total, highest = sum(sums), max(sums, default=0)
    if not total:
        whole = (minutes[-1].from_ms + MINUTE_MS - now_ms) // MINUTE_MS
        return [f"nothing falls due within {format_duration(whole * MINUTE_MS)}; try a longer --horizon"]
    lines = [f"{total:,} fall due; one row is {span}"]
    this_minute_ms = now_ms - now_ms % MINUTE_MS
    for minute, due in zip(minutes[::step], sums, strict=True):
        moment = format_time(minute.from_ms)
        clock = moment[11:16] if step * MINUTE_MS < DAY_MS else moment[:10]
        when = "now" if minute.from_ms <= now_ms else relative_time(minute.from_ms, this_minute_ms)
        bar = f"  {lying_bar(due, highest, width)} {due:,}" if due else ""
        lines.append(f"{clock}  {when:>10}{bar}")
    return lines
