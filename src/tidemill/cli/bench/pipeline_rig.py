"""A Spark pipeline without a broker: entries made in bulk, a target written by hand, cursors watched.

Owns a data directory with nothing in it but entries and timer, and the pipeline's process. What is measured
is the pipeline alone: no message is stored and nothing is released.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from tidemill.broker.control.pipeline_process import PipelineProcess
from tidemill.core import processes
from tidemill.core.clock import SystemClock, machine_ms, stopwatch_s
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import StorageError
from tidemill.core.limits import HOUR_MS
from tidemill.log.disk import RealDisk
from tidemill.log.row_table import RowTable
from tidemill.server.process.pipeline_command import pipeline_command
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.row_check import salts_of, seal
from tidemill.store.indexes import IndexSizes
from tidemill.timer.cursor import Cursor
from tidemill.timer.ready_format import Runner
from tidemill.timer.target import (
    Target,
    raise_epoch,
    read_cursor,
    shard_directories,
    shard_directory,
    write_target,
)

_PATIENCE_S = 170.0
_LOOK_EVERY_S = 0.005
_MADE_AT_ONCE = 1 << 20
_SPREAD_MS = np.uint64(36 * HOUR_MS)
_STRIDE = np.uint64(48_271_013)  # prime: due times come in no order, and every run has the same
_PLACE_BITS = 16


class PipelineRig:
    """Entries, a target, and Spark that runs the timer over them. Use as a context manager."""

    def __init__(self, directory: Path, master: str) -> None:
        self._settings = BrokerSettings()
        self._disk = RealDisk()
        self._now_ms = SystemClock().now_ms()
        self._timer = directory / "timer"
        self._chunk_rows = IndexSizes().entry_chunk_rows
        self._entries = RowTable(
            self._disk, directory / "index" / "entries", ENTRY, self._chunk_rows, lambda: False
        )
        self._disk.make_dir(self._timer)
        self._epoch = raise_epoch(self._disk, self._timer, self._now_ms, 0, Runner.SPARK)
        command = pipeline_command(sys.executable, directory, self._settings, master)
        self._process = PipelineProcess(command, directory / "spark.log", machine_ms)
        self.entry_count = 0

    def __enter__(self) -> PipelineRig:
        self._wait("the pipeline is ready", lambda: self._process.tend().name == "ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close()
        self._entries.close()

    # -- work -------------------------------------------------------------------------------------

    def make_entries(self, count: int) -> None:
        """Far messages, due over a day and a half in no order, not absorbed yet."""
        for first in range(0, count, _MADE_AT_ONCE):
            rows = np.zeros(min(_MADE_AT_ONCE, count - first), ENTRY)
            seqs = self.entry_count + np.arange(len(rows), dtype=np.uint64)
            rows["place"] = seqs << np.uint64(_PLACE_BITS)
            rows["deliver_at_ms"] = self._now_ms + HOUR_MS + (seqs * _STRIDE) % _SPREAD_MS
            rows["stored_at_ms"] = self._now_ms - self._settings.lead_ms  # old enough to call for a step
            rows["size"] = 100
            seal(rows, salts_of(seqs.astype(np.int64)))
            self._entries.write(self.entry_count, rows)
            self.entry_count += len(rows)

    def absorb(self) -> float:
        """Let the pipeline absorb all entries there are; how many seconds that took."""
        begun_s = stopwatch_s()
        self._write_target()
        self._wait("all is absorbed", lambda: min(c.seq for c in self._cursors()) >= self.entry_count)
        return stopwatch_s() - begun_s

    def _write_target(self) -> None:
        target = Target(self._epoch, self._now_ms, self.entry_count, Runner.SPARK)
        write_target(self._disk, self._timer, target)

    def warm_up(self, count: int) -> None:
        """Let Java compile what it will need, then begin again with an empty timer."""
        self.make_entries(-(-count // self._chunk_rows) * self._chunk_rows)
        self.absorb()
        for shard in shard_directories(self._disk, self._timer):
            self._disk.remove_tree(shard)
        self._entries.cut_head(self.entry_count)
        self._epoch += 1
        self._write_target()

    def step_ms(self, count: int) -> float:
        """Spark's own time for one step over so many entries."""
        before = self._process.last_step.number
        self.make_entries(count)
        self.absorb()
        self._wait("the step is reported", lambda: self._process.last_step.number > before)
        return float(self._process.last_step.took_ms)

    def _cursors(self) -> list[Cursor]:
        shards = range(self._settings.shards)
        found = [read_cursor(self._disk, shard_directory(self._timer, shard)) for shard in shards]
        return [cursor or Cursor() for cursor in found]

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        until_s = stopwatch_s() + _PATIENCE_S
        while not is_so():
            state = self._process.tend()
            if state.name == "stopped" or stopwatch_s() > until_s:
                raise StorageError(f"waited in vain: {what}; {state.problem or 'see spark.log'}")
            threading.Event().wait(_LOOK_EVERY_S)

    # -- what it takes ----------------------------------------------------------------------------

    def cpu_s(self) -> dict[int, float]:
        """Processor time of driver, Java and Python workers so far, by process."""
        return {pid: processes.cpu_s(pid) for pid in self._pids()}

    def memory_mb(self) -> dict[str, float]:
        """Proportional resident memory by kind of process: java, python."""
        found = {"java": 0.0, "python": 0.0}
        for pid in self._pids():
            found["java" if processes.is_java(pid) else "python"] += processes.pss_mb(pid)
        return found

    def checkpoint_file_count(self) -> int:
        return sum(path.is_file() for path in (self._timer / "spark" / "checkpoint").rglob("*"))

    def _pids(self) -> list[int]:
        pid = self._process.pid
        return [] if pid is None else [pid, *processes.descendants(pid)]
