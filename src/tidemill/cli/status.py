"""`tidemill status [--watch]`: rates, pending, lateness, disk, pipeline health."""

from __future__ import annotations

import json
import threading
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from tidemill.cli.connecting import EndpointOption, JsonOption, connect
from tidemill.cli.output import console
from tidemill.client.answers import BrokerStatus
from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import format_duration, format_time

_EVERY_S = 1.0
_RATES = ("sent", "released", "cancelled")


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until interrupted.")] = False,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Show how the broker is."""
    with connect(endpoint) as client:
        if watch:
            _watch(client, is_json)
        elif is_json:
            print(json.dumps(client.status().fields))
        else:
            console().print(_table(client.status(), {}))
    return 0


def _watch(client: Client, is_json: bool) -> None:
    """Show the status every second, with the rates between two looks."""
    pause = threading.Event()
    before, before_s = client.status(), stopwatch_s()
    screen = console()
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        while not pause.wait(_EVERY_S):
            now, now_s = client.status(), stopwatch_s()
            rates = {
                name: (getattr(now, name) - getattr(before, name)) / (now_s - before_s) for name in _RATES
            }
            if is_json:
                print(json.dumps({**now.fields, "per_second": rates}), flush=True)
            elif screen.is_terminal:
                live.update(_table(now, rates), refresh=True)
            else:
                screen.print(_table(now, rates))
            before, before_s = now, now_s


def _table(status: BrokerStatus, rates: dict[str, float]) -> Table:
    fields: Any = status.fields
    disk, pipeline = fields["disk"], fields["pipeline"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("pending", f"{status.pending:,}")
    for name in _RATES:
        rate = f"  {rates[name]:,.0f}/s" if name in rates else ""
        table.add_row(name, f"{getattr(status, name):,}{rate}")
    late = (status.lateness_p50_ms, status.lateness_p99_ms, status.lateness_max_ms)
    table.add_row("lateness", "p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms".format(*late))
    if waiting := [level for level in fields.get("levels", ()) if level["waiting"]]:
        table.add_row("levels", "\n".join(_level_line(level, status.now_ms) for level in waiting))
    table.add_row(
        "soon", f"{fields['near']:,} near, {fields['ready']:,} ready, {fields['backlog']:,} held back"
    )
    lag = f", {format_duration(pipeline['lag_ms'])} behind" if pipeline["lag_ms"] else ""
    took = f", {pipeline['takeovers']} takeovers" if pipeline["takeovers"] else ""
    table.add_row("pipeline", f"{pipeline['runner']}, {pipeline['state']}{lag}{took}")
    if pipeline["problem"]:
        table.add_row("", pipeline["problem"])
    low = "  [yellow]nearly full: make room[/]" if disk.get("is_low") else ""
    full = "  [bold red]full: sends are refused[/]" if disk["is_full"] else low
    table.add_row("disk", f"{_bytes(disk['log_bytes'])} of log, {_bytes(disk['free_bytes'])} free{full}")
    simulated = " (simulated)" if fields["is_clock_simulated"] else ""
    leaps = f", {fields['clock_leaps']} leaps seen" if fields["clock_leaps"] else ""
    table.add_row("clock", f"{format_time(status.now_ms)}{simulated}{leaps}")
    return table


def _level_line(level: dict[str, Any], now_ms: int) -> str:
    name = f"{level['level'] or 'old'} ({format_duration(level['delay_ms'])})"
    if level["lag_ms"]:
        when = f"[yellow]{format_duration(level['lag_ms'])} behind[/]"
    else:
        when = f"next in {format_duration(level['next_due_ms'] - now_ms)}"
    return f"{name}: {level['waiting']:,} wait, {when}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
