"""`tidemill bench engine`: what the engine does on this machine, in-process and durable.

Runs the measurements one after another, each in a directory of its own that is removed afterwards, and
prints the figures beside their targets. A missed target is a figure, not a failure: the exit code is 0.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tidemill.broker.loop import let_services_in
from tidemill.cli.bench.bulk import measure_bulk
from tidemill.cli.bench.disk_room import require_room
from tidemill.cli.bench.disk_sync import DiskSync, measure_sync
from tidemill.cli.bench.figures import FIGURES, figures_table
from tidemill.cli.bench.lateness import measure_burst, measure_rest
from tidemill.cli.bench.options import DataOption, JsonOption, QuickOption
from tidemill.cli.bench.pending import measure_pending
from tidemill.cli.bench.workload import FULL, QUICK, Scale
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar

Measure = Callable[[Path, Scale], dict[str, float]]

# What is measured, and about how many seconds it takes, whole and quick: for the time that is left.
_MEASURES: tuple[tuple[str, Measure, int, int], ...] = (
    ("lateness at rest", measure_rest, 60, 12),
    ("sending, absorbing, cancelling", measure_bulk, 40, 4),
    ("a burst", measure_burst, 60, 10),
    ("millions pending", measure_pending, 120, 18),
)
_ROOM_BYTES = 12 << 30
_ROOM_BYTES_QUICK = 2 << 30


def engine(
    data: DataOption = None,
    is_json: JsonOption = False,
    quick: QuickOption = False,
) -> None:
    """Measure the engine: throughput, lateness, reopening, memory. Minutes of time, some 10 GB of disk."""
    scale = QUICK if quick else FULL
    parent = data or Path(tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    require_room(parent, _ROOM_BYTES_QUICK if quick else _ROOM_BYTES)
    figures: dict[str, float] = {}
    let_services_in()  # as `serve` does
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=parent) as place:
        disk = measure_sync(Path(place))
    with planned_bar(
        [PlannedStep(text, brief if quick else long) for text, _, long, brief in _MEASURES]
    ) as next_step:
        for _, measure, _, _ in _MEASURES:
            directory = Path(tempfile.mkdtemp(prefix="tidemill-bench-", dir=parent))
            try:
                figures.update(measure(directory, scale))
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            next_step()
    if is_json:
        print(json.dumps({figure.name: round(figures[figure.name], 3) for figure in FIGURES}))
    else:
        _print_table(figures, quick, disk)


def _print_table(figures: dict[str, float], quick: bool, disk: DiskSync) -> None:
    screen = console()
    screen.print(figures_table("engine, in-process, durable", FIGURES, figures, is_quick=quick))
    screen.print(
        f"One small sync on this disk took {disk.p50_ms:.1f} ms at p50 and {disk.p99_ms:.1f} ms at p99 "
        "beforehand; no durable release can be faster than that."
    )
