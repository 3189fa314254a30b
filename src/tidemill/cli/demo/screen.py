"""The screen: the story as a live table in a terminal, or as plain lines elsewhere.

Owns the presentation and nothing else. Every order has a cell: how long it still waits, or its outcome and
its lateness.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.demo.stage import Record, Stage
from tidemill.core.model import Via

_CELL_WIDTH = 26
_EVENTS_SHOWN = 4
_VIA_NAMES = {Via.NEAR: "near", Via.EMBEDDED: "broker", Via.SPARK: "spark"}


class LiveScreen:
    """Draws the stage; `Live` asks for it again and again."""

    def __init__(self, stage: Stage, console: Console) -> None:
        self._stage = stage
        self._columns = max(2, min(5, (console.width - 2) // _CELL_WIDTH))

    def __rich__(self) -> RenderableType:
        stage = self._stage
        records = list(stage.records.values())
        return Group(_headline(stage, records), self._cells(records), _recent(stage))

    def _cells(self, records: list[Record]) -> RenderableType:
        now_ms = self._stage.clock.now_ms()
        rows = -(-len(records) // self._columns)
        table = Table.grid(padding=(0, 1))
        for _ in range(self._columns):
            table.add_column(width=_CELL_WIDTH - 1, no_wrap=True)
        for row in range(rows):
            # Column by column, so that numbers run downwards.
            table.add_row(*(_cell(record, now_ms) for record in records[row::rows]))
        return table


def _headline(stage: Stage, records: list[Record]) -> RenderableType:
    placed = [record for record in records if record.due_ms is not None]
    waiting = sum(record.is_waiting for record in placed)
    closed = sum(bool(record.closings) for record in placed)
    cancelled = sum(record.is_cancelled for record in placed)
    closings = (closing for record in placed for closing in record.closings)
    late = sorted(closing.late_ms for closing in closings if not stage.was_delayed_by_the_kill(closing))
    text = Text.assemble(
        (f"{stage.since_begin_ms() / 1000:5.1f} s ", "bold"),
        ("running", "green") if stage.is_up else ("KILLED", "bold red"),
        f"  {len(placed)} placed  ",
        (f"{waiting} pending", "cyan"),
        "  ",
        (f"{closed} closed", "yellow"),
        "  ",
        (f"{cancelled} cancelled", "green"),
        f"  median {late[len(late) // 2]} ms late" if late else "",
    )
    return Panel(
        text, title="an order that is not paid in time is closed", border_style="blue", padding=(0, 1)
    )


def _cell(record: Record, now_ms: int) -> Text:
    text = Text(f"{record.order.number:3d} ", "dim")
    if record.due_ms is None:
        text.append("·", "dim")
    elif record.closings:
        closing = record.closings[-1]
        text.append("closed ", "yellow")
        late = f"{closing.late_ms} ms" if closing.late_ms < 1000 else f"{closing.late_ms / 1000:.1f} s"
        text.append(f"+{late}", "bold" if closing.late_ms < 100 else "bold magenta")
        text.append(f" {_VIA_NAMES.get(closing.via, '')}", "dim")
    elif record.is_cancelled:
        text.append("paid, cancelled", "green")
    else:
        left_ms = record.due_ms - now_ms
        full = max(1, min(6, round(left_ms / 2000)))
        text.append(f"{max(0, left_ms) / 1000:4.1f} s ", "magenta" if record.is_extended else "cyan")
        text.append("▪" * full, "magenta" if record.is_extended else "cyan")
    if record.is_extended and not record.closings:
        text.append(" more time", "magenta")
    return text


def _recent(stage: Stage) -> RenderableType:
    lines = [_event_line(*event) for event in list(stage.events)[-_EVENTS_SHOWN:]]
    lines += [Text("")] * (_EVENTS_SHOWN - len(lines))
    return Panel(Group(*lines), border_style="dim", padding=(0, 1))


def _event_line(at_ms: int, text: str) -> Text:
    style = "bold" if "broker" in text or "Spark" in text else "red" if "too late" in text else ""
    return Text.assemble((f"{at_ms / 1000:5.1f} s  ", "dim"), (text, style))


def plain_event(at_ms: int, text: str) -> str:
    """An event as a line for a pipe."""
    return f"{at_ms / 1000:5.1f} s  {text}"
