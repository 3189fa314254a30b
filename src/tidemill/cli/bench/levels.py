"""`tidemill bench levels`: delay levels, the window of commits, and the timer stores beside each other.

Releases from levels are measured on a simulated clock that leaps to where everything is due, on a real disk:
from the leap until the last message is in its topic. The window is measured in real time on a disk whose
syncs take 5 ms, with one message in each release record, so that releases come one by one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.broker.broker import Broker, Sizes
from tidemill.broker.loop import let_services_in
from tidemill.cli.bench.bulk import touch_memory
from tidemill.cli.bench.figures import LEVEL_FIGURES, print_figures
from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption, work_directory
from tidemill.cli.bench.timer_stores import measure_store
from tidemill.cli.bench.watcher import Watcher
from tidemill.cli.bench.workload import BATCH_ROWS, TOPIC, table_due_at
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.core.clock import SimulatedClock, stopwatch_s, wall_s
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import StorageError
from tidemill.core.limits import HOUR_MS
from tidemill.log.disk import DiskFile, RealDisk
from tidemill.timer.settings import StoreKind

_COMMIT_MS = 5.0
_BYTES_EACH = 500
_PATIENCE_S = 120.0
_ALL_LEVELS = tuple(range(1, 19))


@dataclass(frozen=True, slots=True)
class _Scale:
    level_count: int  # messages in each run with levels
    runs: int  # of which the median or the best counts
    single_count: int  # messages that are released one by one


_FULL = _Scale(1 << 20, 5, 1_000)
_QUICK = _Scale(1 << 13, 1, 50)


def levels(data: DataOption = None, is_json: JsonOption = False, quick: QuickOption = False) -> None:
    """Measure delay levels, commits in flight, and both timer stores. About two minutes, 2 GB of disk."""
    scale = _QUICK if quick else _FULL
    let_services_in()  # as `serve` does
    with work_directory(data) as directory, planned_bar(_plan(quick)) as next_step:
        figures = _measure_levels(directory, scale)
        next_step()
        figures |= _measure_window(directory, scale)
        next_step()
        for store in StoreKind:
            figures |= measure_store(store, directory, quick=quick)
            next_step()
    print_figures("levels, in-process, durable", LEVEL_FIGURES, figures, is_json=is_json, is_quick=quick)


def _plan(quick: bool) -> list[PlannedStep]:
    """The steps and their estimated seconds."""
    stores = [PlannedStep(f"the timer store {store}", 3 if quick else 35) for store in StoreKind]
    return [
        PlannedStep("levels", 2 if quick else 40),
        PlannedStep("commits in flight", 2 if quick else 10),
        *stores,
    ]


def _measure_levels(directory: Path, scale: _Scale) -> dict[str, float]:
    """Four levels at once; then 18 and one in turns, the best of each: other load only makes a run slower."""
    touch_memory(directory / "warm-up", scale.level_count * _BYTES_EACH)
    four = [_send_and_release(directory, scale, (1, 2, 3, 4)) for _ in range(scale.runs)]
    both = [
        (_send_and_release(directory, scale, _ALL_LEVELS), _send_and_release(directory, scale, (5,)))
        for _ in range(scale.runs)
    ]
    many, one = [first for first, _ in both], [second for _, second in both]
    return {
        "four_levels_per_s": scale.level_count / median(run.release_s for run in four),
        "levels_18_to_1_release": min(r.release_s for r in many) / min(r.release_s for r in one),
        "levels_18_to_1_send": min(r.send_s for r in many) / min(r.send_s for r in one),
    }


@dataclass(frozen=True, slots=True)
class _Run:
    send_s: float
    release_s: float


def _send_and_release(directory: Path, scale: _Scale, on_levels: Sequence[int]) -> _Run:
    """Store messages that alternate between these levels, then let everything fall due."""
    clock = SimulatedClock(round(wall_s() * 1000))
    place = directory / "levels"
    with Broker(place, clock=clock, has_threads=False) as broker:
        tables = [_level_table(on_levels, at) for at in range(0, scale.level_count, BATCH_ROWS)]
        if scale.level_count < BATCH_ROWS:
            tables = [tables[0].slice(0, scale.level_count)]
        begun_s = stopwatch_s()
        for table in tables:
            broker.send_table(table, topic=TOPIC)
        send_s = stopwatch_s() - begun_s
        broker.run_due()  # in reality the timer has passed over the entries by then
        clock.advance_to(clock.now_ms() + 3 * HOUR_MS)
        begun_s = stopwatch_s()
        broker.advance_to(clock.now_ms())
        release_s = stopwatch_s() - begun_s
        _require_all(broker.status().released, scale.level_count)
    shutil.rmtree(place)
    return _Run(send_s, release_s)


def _level_table(on_levels: Sequence[int], start: int) -> pa.Table:
    numbers = np.arange(start, start + BATCH_ROWS) % len(on_levels)
    bodies = table_due_at(np.zeros(BATCH_ROWS, np.int64)).column("body")
    return pa.table({"body": bodies, "level": pa.array(np.asarray(on_levels, np.int32)[numbers])})


def _measure_window(directory: Path, scale: _Scale) -> dict[str, float]:
    rates = {size: _one_by_one(directory / f"window-{size}", scale.single_count, size) for size in (1, 8)}
    return {
        "commits_1_per_s": rates[1],
        "commits_8_per_s": rates[8],
        "commits_8_to_1": rates[8] / rates[1],
    }


def _one_by_one(place: Path, count: int, commits_in_flight: int) -> float:
    """Released per second, all due at once on level 1, one in each record, where a commit takes 5 ms."""
    settings = BrokerSettings(commits_in_flight=commits_in_flight)
    sizes = Sizes(release_rows_max=1)
    with Broker(place, settings, disk=SlowDisk(_COMMIT_MS), sizes=sizes) as broker:
        watcher = Watcher(broker)
        table = _level_table((1,), 0).slice(0, count)
        due_ms = int(broker.send_table(table, topic=TOPIC).deliver_at_ms.max())
        watcher.wait_for(count, wall_s() + _PATIENCE_S)
        _require_all(watcher.seen, count)
    return count / (watcher.last_seen_s - due_ms / 1000)


def _require_all(released: int, count: int) -> None:
    if released != count:
        raise StorageError(f"{released:,} of {count:,} were released; the figures mean nothing")


class _SlowFile:
    """A file that pauses in each sync."""

    def __init__(self, real: DiskFile, pause: Callable[[float], None]) -> None:
        self._real = real
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sync(self) -> None:
        begun_s = stopwatch_s()
        self._real.sync()
        self._pause(begun_s)


class SlowDisk(RealDisk):
    """Every sync of a file takes at least `sync_ms`."""

    def __init__(self, sync_ms: float) -> None:
        self._sync_s = sync_ms / 1000

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file: Any = _SlowFile(super().open(path, create=create), self._pause)
        slow: DiskFile = file
        return slow

    def _pause(self, begun_s: float) -> None:
        """Wait for the rest of the time that a sync takes."""
        threading.Event().wait(max(0.0, self._sync_s - (stopwatch_s() - begun_s)))
