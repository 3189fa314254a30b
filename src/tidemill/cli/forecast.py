"""`tidemill forecast [--watch]`: how much falls due when, drawn as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from rich.text import Text

from tidemill.cli.arguments import TopicOption, WatchOption, duration_option, usage
from tidemill.cli.charts import lying_bar, put_together
from tidemill.cli.connecting import client_command, clock_of
from tidemill.cli.output import Answer, console, relative_time
from tidemill.cli.watching import watch
from tidemill.client.client import Client
from tidemill.core.answers import Minute
from tidemill.core.durations import format_duration, format_time, parse_duration_ms
from tidemill.core.limits import DAY_MS, HORIZON_MS_MAX, MINUTE_MS

_ROWS = 30  # and one for the rest of the current minute
_BESIDE_CHARS = 36  # the text left and right of a bar
_BAR_CHARS_MIN = 10
_BARS = r"[\u2588-\u258f]+"  # the block characters that bars are made of


@client_command
def forecast(
    client: Client,
    is_json: bool,
    topic: TopicOption = None,
    horizon: Annotated[str, duration_option(help="How far to look.")] = "1h",
    is_watch: WatchOption = False,
) -> Answer | int:
    """Show how many messages fall due when: one row per minute, or per several minutes.

    At most 30 rows are drawn; the first line says how many minutes a row has. --json has every minute.
    """
    if not 0 < parse_duration_ms(horizon) <= HORIZON_MS_MAX:
        limit = format_duration(HORIZON_MS_MAX)
        raise usage(f"--horizon {horizon} is not possible; use at most {limit}, such as 30m, 2h or 3d")
    if is_watch and not is_json:
        watch(console(), lambda: _picture(client, topic, horizon))
        return 0
    minutes = client.forecast(topic, horizon=horizon)
    fields = [{"from_ms": minute.from_ms, "due": minute.due} for minute in minutes]
    return Answer([fields], lambda: [_chart(minutes, client)])


def _picture(client: Client, topic: str | None, horizon: str) -> Text:
    return _chart(client.forecast(topic, horizon=horizon), client)


def _chart(minutes: Sequence[Minute], client: Client) -> Text:
    width = max(_BAR_CHARS_MIN, console().width - _BESIDE_CHARS)
    now_ms = clock_of(client)
    return painted(drawn(minutes, minutes[0].from_ms if now_ms is None else now_ms, width))


def painted(lines: Sequence[str]) -> Text:
    """The lines of a forecast with their bars in colour."""
    picture = Text("\n".join(lines), no_wrap=True)
    picture.highlight_regex(_BARS, "cyan")
    return picture


def drawn(minutes: Sequence[Minute], now_ms: int, width: int) -> list[str]:
    """The forecast as lines of text: at most `_ROWS` rows, several minutes in a row where there are more."""
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
