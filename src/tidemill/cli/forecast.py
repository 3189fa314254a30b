"""`tidemill forecast`: how much falls due when, drawn as bars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, duration_ms
from tidemill.cli.output import console, relative_time
from tidemill.client.answers import Minute
from tidemill.core.durations import format_duration, format_time
from tidemill.core.limits import MINUTE_MS

_ROWS = 30
_BAR_CHARS = 50
_EIGHTHS = " ▏▎▍▌▋▊▉"


def forecast(
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    horizon: Annotated[str, typer.Option(help="How far to look.")] = "1h",
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Show how many messages fall due in each minute."""
    with connect(endpoint) as client:
        minutes = client.forecast(topic, horizon=duration_ms(horizon))
        if is_json:
            print(json.dumps([{"from_ms": m.from_ms, "due": m.due} for m in minutes]))
            return 0
        now_ms = client.status().now_ms
    screen = console()
    for line in drawn(minutes, now_ms):
        screen.print(line, markup=False, highlight=False)
    return 0


def drawn(minutes: Sequence[Minute], now_ms: int) -> list[str]:
    """The forecast as lines of text: at most a screenful, minutes put together where there are more."""
    step = max(1, -(-len(minutes) // _ROWS))
    rows = [
        (minutes[start].from_ms, sum(m.due for m in minutes[start : start + step]))
        for start in range(0, len(minutes), step)
    ]
    highest = max((due for _, due in rows), default=0)
    total = sum(due for _, due in rows)
    lines = [f"{total:,} fall due; one row is {format_duration(step * MINUTE_MS)}"]
    for from_ms, due in rows:
        clock = format_time(from_ms)[11:16] if step * MINUTE_MS < 86_400_000 else format_time(from_ms)[:10]
        when = "now" if from_ms <= now_ms else relative_time(from_ms, now_ms)
        lines.append(f"{clock}  {when:>10}  {_bar(due, highest)} {due:,}" if due else f"{clock}  {when:>10}")
    return lines


def _bar(value: int, highest: int) -> str:
    eighths = max(1, round(value * _BAR_CHARS * 8 / highest))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
