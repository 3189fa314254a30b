"""Renders the status: a plain table for one look, a live view with recent history for `--watch`.

Owns the samples seen so far (`Seen`) and the rendering; does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.charts import bytes_text, lying_bar, sparkline, standing_bars
from tidemill.core.answers import BrokerStatus, Minute, TopicInfo
from tidemill.core.durations import format_duration, format_time
from tidemill.core.holds import Held

RATES = ("sent", "released", "cancelled")
_PAST = 60
_TOPICS = 8
_FORECAST_LINES = 4
_DISK_CHARS = 30
_WAITS_FOR = {
    "pause": "TOPIC is paused",
    "rate": "TOPIC may release only so many a second",
    "order": "FIFO, the timer has yet to hand over what may come before",
    "commit": "the disk is slow, all commits in flight are under way",
    "disk": "the disk is full",
    "sweep": "overdue and missing in the timer, being looked for",
    "hold": "releases are held",
    "absorb": "absorbing is held, and the timer had not taken them in",
    "clock": "the clock leapt forward and may be wrong; ten seconds",
}

WAITS_SHORT = {
    "pause": "topic paused",
    "rate": "rate limit",
    "order": "FIFO order",
    "commit": "slow disk",
    "disk": "disk full",
    "sweep": "missing in the timer",
    "hold": "releases held",
    "absorb": "absorbing held",
    "clock": "clock jumped",
}


@dataclass(slots=True)
class Seen:
    """The state at each look of the last minute, for rates and their history."""

    endpoint: str
    status: BrokerStatus | None = None
    topics: Sequence[TopicInfo] = ()
    minutes: Sequence[Minute] | None = None
    rates: dict[str, deque[float]] = field(
        default_factory=lambda: {name: deque(maxlen=_PAST) for name in RATES}
    )
    late_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_PAST))
    _seen_at_s: float = 0.0

    def add(
        self,
        status: BrokerStatus,
        now_s: float,
        topics: Sequence[TopicInfo],
        minutes: Sequence[Minute] | None,
    ) -> None:
        """Add another look."""
        if self.status is not None and now_s > self._seen_at_s:
            for name, past in self.rates.items():
                risen = getattr(status, name) - getattr(self.status, name)
                past.append(max(0, risen) / (now_s - self._seen_at_s))
        self.late_ms.append(status.lateness_p99_ms)
        self.status, self._seen_at_s = status, now_s
        self.topics, self.minutes = topics, minutes


def table_of(status: BrokerStatus) -> Table:
    """The present state, as a plain table."""
    return _lines_of(status, None)


def picture_of(seen: Seen) -> RenderableType:
    """The live view."""
    status = seen.status
    assert status is not None, "a view is drawn after a look"
    parts: list[RenderableType] = [_lines_of(status, seen)]
    if not status.sent:
        parts.append(Text("\nNothing was sent yet. Try: tidemill send hello world --delay 10s", "dim"))
    if seen.minutes is not None and any(minute.due for minute in seen.minutes):
        parts += [Text(), _forecast(seen.minutes)]
    if seen.topics:
        parts.append(_topics(seen.topics))
    title = f"[bold]Tidemill[/] {escape(seen.endpoint)}"
    return Panel(Group(*parts), title=title, subtitle=_clock(status), title_align="left")


def _lines_of(status: BrokerStatus, seen: Seen | None) -> Table:
    """A line for each fact; without a line for what is not there. With history for a live view."""
    fields: Any = status.fields
    lines = Table(box=None, show_header=False, pad_edge=False)
    lines.add_column(style="bold")
    lines.add_column()

    def add(name: str, *texts: str) -> None:
        if text := "\n".join(filter(None, texts)):
            lines.add_row(name, text)

    add("health", *_health(fields))
    if seen is None:
        add("pending", f"{status.pending:,}")
        for name in RATES:
            add(name, f"{getattr(status, name):,}")
        add("lateness", _lateness(status))
    else:
        add("pending", f"[bold]{status.pending:,}[/]   [dim]{_soon(fields)}[/]")
        for name, past in seen.rates.items():
            rate = past[-1] if past else 0.0
            add(name, f"{rate:>9,.0f}/s [green]{sparkline(list(past), _PAST)}[/]")
        add("lateness", f"{_lateness(status)}  [yellow]{sparkline(list(seen.late_ms), _PAST)}[/]")
    waiting = (level for level in fields.get("levels", ()) if level["waiting"])
    add("levels", *(_level(level, status.now_ms) for level in waiting))
    if seen is None:
        add("soon", _soon(fields))
    add("held", *_holds(fields, status.now_ms))
    add("waits", *(_wait(wait) for wait in fields.get("waits", ())))
    add("swept", _swept(fields))
    add("pipeline", _pipeline(fields["pipeline"]))
    if problem := fields["pipeline"]["problem"]:
        lines.add_row("", f"[yellow]{escape(problem)}[/]")
    add("damaged", _damage(fields))
    add("disk", (_disk_bar(fields["disk"]) if seen is not None else "") + _disk(fields["disk"]))
    if seen is None:
        add("clock", _clock(status))
    return lines


def _forecast(minutes: Sequence[Minute]) -> Table:
    total = sum(minute.due for minute in minutes)
    highest = max(minute.due for minute in minutes)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    picture = Text("\n".join(standing_bars([minute.due for minute in minutes], _FORECAST_LINES)), "cyan")
    scale = Text(f"now{'in an hour':>{len(minutes) - 3}}", "dim")
    words = f"{total:,} fall due,\nat most\n{highest:,} a minute"
    table.add_row("next hour", Group(picture, scale), Text(words, "dim"))
    return table


def _topics(topics: Sequence[TopicInfo]) -> Table:
    ordered = sorted(topics, key=lambda topic: (-topic.pending, -topic.sent, topic.name))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim", title=" ")
    table.add_column("topic", no_wrap=True, max_width=40)
    for name in ("pending", *RATES):
        table.add_column(name, justify="right")
    table.add_column("")
    for topic in ordered[:_TOPICS]:
        counts = [f"{getattr(topic, name):,}" for name in ("pending", *RATES)]
        table.add_row(escape(topic.name), *counts, "[yellow]paused[/]" if topic.is_paused else "")
    if len(ordered) > _TOPICS:
        table.add_row(f"[dim]and {len(ordered) - _TOPICS:,} more[/]")
    return table


def _health(fields: Any) -> Iterator[str]:
    """What is wrong; nothing while all is well."""
    health = fields.get("health", {})  # an older broker does not report it
    if health.get("reason"):
        yield f"[bold red]{health['state']}: {escape(health['reason'])}[/]"
    if health.get("last_fault"):
        yield f"[yellow]opened again after: {escape(health['last_fault'])}[/]"


def _lateness(status: BrokerStatus) -> str:
    fields: Any = status.fields
    if not fields.get("lateness_ms", {}).get("count", 1):
        return "none released since the start"
    late = (status.lateness_p50_ms, status.lateness_p99_ms, status.lateness_max_ms)
    return "p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms".format(*late)


def _soon(fields: Any) -> str:
    halves = fields.get("open_transactions", 0)  # an older broker does not report it
    opened = f", {halves:,} in open transactions" if halves else ""
    return f"{fields['near']:,} near, {fields['ready']:,} ready, {fields['backlog']:,} held back{opened}"


def _holds(fields: Any, now_ms: int) -> Iterator[str]:
    """What an operator holds for the whole broker; nothing, as a rule."""
    holds = fields.get("holds", {})  # an older broker does not report it
    for what in Held:
        if (since_ms := holds.get(f"{what}_since_ms")) is not None:
            held = format_duration(max(0, now_ms - since_ms))
            yield f"[bold yellow]{what} for {held}: `tidemill resume {what}`[/]"


def _wait(wait: Any) -> str:
    """Why messages that are due are not in their topic yet."""
    why = _WAITS_FOR.get(wait["waits_for"], wait["waits_for"])
    return f"[yellow]{wait['messages']:,} wait: {why}[/]".replace("TOPIC", escape(wait["topic"]) or "a topic")


def _level(level: Any, now_ms: int) -> str:
    """A delay level with pending messages."""
    name = f"{level['level'] or 'old'} ({format_duration(level['delay_ms'])})"
    if level["lag_ms"]:
        when = f"[yellow]{format_duration(level['lag_ms'])} behind[/]"
    else:
        when = f"next in {format_duration(level['next_due_ms'] - now_ms)}"
    return f"{name}: {level['waiting']:,} wait, {when}"


def _pipeline(pipeline: Any) -> str:
    since = f"since {format_time(pipeline['since_ms'])}"
    lag = f"{format_duration(pipeline['lag_ms'])} behind" if pipeline["lag_ms"] else "nothing behind"
    took = f"{pipeline['takeovers'] or 'no'} takeover{'' if pipeline['takeovers'] == 1 else 's'}"
    return f"{pipeline['runner']} {since}, {pipeline['state']}, {lag}, {took}, {pipeline['store']}"


def _swept(fields: Any) -> str:
    """Messages that the timer had lost; nothing, as a rule."""
    count = fields.get("swept", 0)  # an older broker does not report it
    what = "message" if count == 1 else "messages"
    return f"[yellow]{count:,} overdue {what}, missing in the timer, found and released[/]" if count else ""


def _damage(fields: Any) -> str:
    """What is known to be damaged in the log; nothing, as a rule."""
    damage = fields.get("damage", {"frames": 0})  # an older broker does not report it
    if not damage["frames"]:
        return ""
    frames = f"{damage['frames']:,} frame{'' if damage['frames'] == 1 else 's'} of the log"
    held = f", {damage['pending']:,} of them wait and keep their part of the log" if damage["pending"] else ""
    return (
        f"[bold red]{damage['messages']:,} messages in {frames} are not delivered{held}: "
        "see `tidemill damaged`[/]"
    )


def _disk(disk: Any) -> str:
    low = "  [yellow]nearly full: free space[/]" if disk.get("is_low") else ""
    full = "  [bold red]full: sends are refused[/]" if disk["is_full"] else low
    return f"{bytes_text(disk['log_bytes'])} of log, {bytes_text(disk['free_bytes'])} free{full}"


def _disk_bar(disk: Any) -> str:
    used = lying_bar(disk["log_bytes"], disk["log_bytes"] + disk["free_bytes"], _DISK_CHARS)
    return f"[blue]{used:·<{_DISK_CHARS}}[/] "


def _clock(status: BrokerStatus) -> str:
    simulated = " (simulated)" if status.fields["is_clock_simulated"] else ""
    leaps = f", {status.fields['clock_leaps']} leaps seen" if status.fields["clock_leaps"] else ""
    return f"{format_time(status.now_ms)}{simulated}{leaps}"
