"""`python -m benchmarks timers`: the two timer stores compared on the same timers, durable."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from rich.table import Table

from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption
from tidemill.cli.bench.timer_stores import TIMER_FIGURES, measure_store, timer_count
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.timer.settings import StoreKind


def timers(
    data: DataOption = None,
    is_json: JsonOption = False,
    quick: QuickOption = False,
) -> None:
    """Compare both timer stores: wheel and RocksDB, absorbing, handing over and waiting."""
    figures: dict[str, float] = {}
    with planned_bar(
        [PlannedStep(f"the timer store {store}", 3 if quick else 35) for store in StoreKind]
    ) as next_step:
        for store in StoreKind:
            figures |= measure_store(store, data or Path(tempfile.gettempdir()), quick=quick)
            next_step()
    if is_json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    else:
        _print_table(figures, timer_count(quick))


def _print_table(figures: dict[str, float], count: int) -> None:
    table = Table(title=f"timer stores, {count:,} timers, embedded runner, durable")
    table.add_column("figure")
    for store in StoreKind:
        table.add_column(store.value, justify="right")
    for figure in TIMER_FIGURES:
        values = [f"{figures[f'{store}_{figure.name}']:,.1f} {figure.unit}" for store in StoreKind]
        table.add_row(figure.meaning, *values)
    console().print(table)
