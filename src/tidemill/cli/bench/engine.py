"""`tidemill bench engine`: throughput, lateness, reopening and memory of the engine, in-process and durable.

Runs the measurements one after another, each in a directory of its own that is removed afterwards. A missed
target is a figure, not a failure: the exit code is 0.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tidemill.broker.loop import let_services_in
from tidemill.cli.bench.bulk import measure_bulk
from tidemill.cli.bench.figures import FIGURES, print_figures
from tidemill.cli.bench.lateness import measure_burst, measure_rest
from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption, work_directory
from tidemill.cli.bench.pending import measure_pending
from tidemill.cli.bench.workload import FULL, QUICK, Scale
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.core.clock import stopwatch_s
from tidemill.core.limits import MIB
from tidemill.log.disk import RealDisk

Measure = Callable[[Path, Scale], dict[str, float]]

# What is measured, and about how many seconds it takes, full and quick: for the remaining time.
_MEASURES: tuple[tuple[str, Measure, int, int], ...] = (
    ("lateness at rest", measure_rest, 60, 12),
    ("sending, absorbing, cancelling", measure_bulk, 40, 4),
    ("a burst", measure_burst, 60, 10),
    ("millions pending", measure_pending, 120, 18),
)
_DISK_BYTES = 12 << 30
_DISK_BYTES_QUICK = 2 << 30
_SYNC_COUNT = 200
_SYNC_BYTES = 200  # about a release record for one message


def engine(data: DataOption = None, is_json: JsonOption = False, quick: QuickOption = False) -> None:
    """Measure the engine: throughput, lateness, reopening, memory. Minutes of time, some 10 GB of disk."""
    scale = QUICK if quick else FULL
    figures: dict[str, float] = {}
    let_services_in()  # as `serve` does
    with work_directory(data, _DISK_BYTES_QUICK if quick else _DISK_BYTES) as place:
        sync_ms = _sync_ms(place)
        steps = [PlannedStep(text, brief if quick else long) for text, _, long, brief in _MEASURES]
        with planned_bar(steps) as next_step:
            for number, (_, measure, _, _) in enumerate(_MEASURES):
                directory = place / str(number)
                directory.mkdir()
                figures.update(measure(directory, scale))
                shutil.rmtree(directory)
                next_step()
    print_figures("engine, in-process, durable", FIGURES, figures, is_json=is_json, is_quick=quick)
    if not is_json:
        p50_ms, p99_ms = np.percentile(sync_ms, [50, 99])
        console().print(
            f"One small sync on this disk took {p50_ms:.1f} ms at p50 and {p99_ms:.1f} ms at p99 "
            "beforehand; no durable release can be faster than that."
        )


def _sync_ms(directory: Path) -> list[float]:
    """What small syncs take: records appended to a preallocated file, each with its own sync, as in a log."""
    file = RealDisk().open(directory / "sync", create=True)
    took_ms = []
    try:
        file.preallocate(MIB)
        file.sync()
        for number in range(_SYNC_COUNT):
            file.write(number * _SYNC_BYTES, bytes(_SYNC_BYTES))
            begun_s = stopwatch_s()
            file.sync()
            took_ms.append((stopwatch_s() - begun_s) * 1000)
    finally:
        file.close()
    return took_ms
