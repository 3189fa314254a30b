"""The figures of the comparison: name, meaning, which direction is better, and the printed table.

Owns the list in `docs/benchmarks.md`; in JSON each name stands behind its system's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from benchmarks.compare.system import System

Measured = Mapping[str, Mapping[str, float]]  # by system, by figure

_NOT_THERE = "-"
_ALIKE = 1.05


@dataclass(frozen=True, slots=True)
class Compared:
    name: str
    meaning: str
    unit: str
    is_more_better: bool
    least: float = 0.1  # smaller values count as this
    is_judged: bool = True

    def text(self, value: float) -> str:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f} {self.unit}" if self.unit else f"{value:,.0f}"


COMPARED = (
    Compared("send_per_s", "single sends, 32 threads", "/s", True),
    Compared("bulk_per_s", "scheduled in bulk", "/s", True),
    Compared("cancel_per_s", "cancelled in bulk", "/s", True),
    Compared("late_min_ms", "lateness at rest, earliest", "ms", False, is_judged=False),
    Compared("late_p50_ms", "lateness at rest, p50", "ms", False),
    Compared("late_p99_ms", "lateness at rest, p99", "ms", False),
    Compared("idle_core_percent", "of a core, nothing due", "%", False, least=0.5),
    Compared("burst_queued_ms", "burst, all in queue", "ms", False),
    Compared("burst_taken_ms", "burst, all settled", "ms", False),
    Compared("memory_empty_mb", "memory, empty", "MB", False),
    Compared("memory_mb", "memory, pending", "MB", False),
    Compared("memory_held_mb", "of that, not files", "MB", False),
    Compared("disk_bytes_per_pending", "disk each", "B", False),
    Compared("killed_down_s", "killed: takes sends after", "s", False),
    Compared("killed_lost", "answered and lost then", "", False, is_judged=False),
    Compared("killed_doubled", "stored twice then", "", False, is_judged=False),
)


def compared_table(title: str, systems: Sequence[System], measured: Measured) -> Table:
    """Systems as columns, Tidemill first; last, how it does beside the best of the others."""
    table = Table(title=title)
    table.add_column("figure")
    for system in systems:
        table.add_column(system.title, justify="right")
    table.add_column("to the best peer", justify="right")
    for figure in COMPARED:
        values = [measured[system.name].get(figure.name) for system in systems]
        cells = [_NOT_THERE if value is None else figure.text(value) for value in values]
        table.add_row(figure.meaning, *cells, verdict(figure, values))
    return table


def verdict(figure: Compared, values: Sequence[float | None]) -> Text:
    """How the first one does beside the best of the others."""
    own, others = values[0], [value for value in values[1:] if value is not None]
    if own is None or not others or not figure.is_judged:
        return Text("")
    ratio = times_better(figure, own, max(others) if figure.is_more_better else min(others))
    if 1 / _ALIKE < ratio < _ALIKE:
        return Text("alike")
    if ratio > 1:
        return Text(f"{_times(ratio)} better", "green")
    return Text(f"{_times(1 / ratio)} worse", "red")


def times_better(figure: Compared, own: float, other: float) -> float:
    """Above 1 where our own figure is the better one."""
    own, other = max(own, figure.least), max(other, figure.least)
    return own / other if figure.is_more_better else other / own


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
