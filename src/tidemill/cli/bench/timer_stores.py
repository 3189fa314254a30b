"""Measures a timer store, durable: the same timers for either, so that both can be compared.

The embedded runner absorbs synthetic entries into a new timer directory, hands them all over, and in a second
directory carries them through a wait of thirty days. Each store runs in a process of its own, so that its
memory is its own. Bytes written are those the process gave to the file system, as Linux counts them.
"""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tidemill.cli.bench.measuring import anonymous_mb, written_bytes
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tidemill.log.arrays import I64
from tidemill.log.disk import RealDisk
from tidemill.store.formats.entry_format import ENTRY, Entries
from tidemill.store.upkeep.memory import give_back_memory, keep_memory_flat
from tidemill.timer.embedded_runner import EmbeddedRunner
from tidemill.timer.settings import StoreKind, TimerSettings
from tidemill.timer.target import raise_epoch

_START_MS = 1_800_000_000_000
_LEAD_MS = 30_000
_SPAN_MS = HOUR_MS
_WAIT_DAYS = 30
_FAR_MS = (_WAIT_DAYS + 1) * DAY_MS
_FULL_COUNT = 2_000_000
_QUICK_COUNT = 50_000


@dataclass(frozen=True, slots=True)
class TimerFigure:
    """A figure that is measured for each store; in JSON its name begins with the store's."""

    name: str
    meaning: str
    unit: str


TIMER_FIGURES = (
    TimerFigure("absorb_per_s", "absorbed, durable", "/s"),
    TimerFigure("absorb_written_bytes", "written to absorb one", "B"),
    TimerFigure("disk_bytes", "disk for one that is pending", "B"),
    TimerFigure("due_per_s", "handed over", "/s"),
    TimerFigure("month_written_bytes", "written for one that waits thirty days, beside absorbing it", "B"),
    TimerFigure("month_s", "spent on the whole load in those thirty days", "s"),
    TimerFigure("memory_mb", "more memory with the load than without", "MB"),
    TimerFigure("open_ms", "opened again with the load", "ms"),
)


def measure_store(store: StoreKind, parent: Path, *, quick: bool) -> dict[str, float]:
    """The figures of one store, in a process of its own; their names begin with the store's."""
    command = [
        sys.executable,
        "-m",
        "tidemill.cli.bench.timer_stores",
        store.value,
        str(parent),
        str(timer_count(quick)),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if said.returncode:
        raise StorageError(f"measuring {store} failed: {said.stderr.strip().splitlines()[-1:]}")
    measured = json.loads(said.stdout)
    return {f"{store}_{figure.name}": measured[figure.name] for figure in TIMER_FIGURES}


def timer_count(quick: bool) -> int:
    return _QUICK_COUNT if quick else _FULL_COUNT


class SyntheticEntries:
    """Entries in memory, due at the times given. An `EntrySource`."""

    head_seq = 0

    def __init__(self, deliver_at_ms: I64) -> None:
        count = len(deliver_at_ms)
        self._rows = np.zeros(count, ENTRY)
        self._rows["deliver_at_ms"] = deliver_at_ms
        self._rows["topic_id"] = np.arange(count) % 16
        self._rows["id_hash"] = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, first_seq: int, end_seq: int) -> Entries:
        return self._rows[first_seq:end_seq]

    def take(self, seqs: I64) -> Entries:
        return self._rows.take(seqs)


class _Bench:
    """One store at work in one directory."""

    def __init__(self, directory: Path, store: StoreKind, entries: SyntheticEntries) -> None:
        self._disk = RealDisk()
        self._directory = directory
        self._entries = entries
        self._runner = EmbeddedRunner(
            self._disk, directory, replace(TimerSettings(), store=store), entries, lead_ms=_LEAD_MS
        )
        self.open()

    def open(self) -> float:
        """Take the shards; seconds it took."""
        epoch = raise_epoch(self._disk, self._directory, _START_MS, len(self._entries))
        begun_s = stopwatch_s()
        self._runner.open(epoch, 0)
        return stopwatch_s() - begun_s

    def run(self, now_ms: int) -> tuple[float, int]:
        """Bring every shard to the target of `now_ms`; seconds it took and bytes that were written."""
        begun_s, before = stopwatch_s(), written_bytes()
        self._runner.run_until_reached(now_ms, len(self._entries))
        return stopwatch_s() - begun_s, written_bytes() - before

    def disk_bytes(self) -> int:
        return self._disk.allocated_bytes(self._directory)

    def close(self) -> None:
        self._runner.close()


def measure(store: StoreKind, directory: Path, count: int) -> dict[str, float]:
    """All figures of one store, in this process."""
    keep_memory_flat()
    # A large odd stride walks over the whole span without repeating itself.
    strides = np.arange(count, dtype=np.int64) * 7_919_317
    soon = SyntheticEntries(_START_MS + MINUTE_MS + strides % _SPAN_MS)
    small = _Bench(directory / "empty", store, SyntheticEntries(np.empty(0, np.int64)))
    small.run(_START_MS)
    small.close()
    idle_mb = _settled_mb()
    bench = _Bench(directory / "soon", store, soon)
    empty_disk_bytes = bench.disk_bytes()
    absorb_s, absorb_bytes = bench.run(_START_MS)
    memory_mb = _settled_mb() - idle_mb
    bench.close()
    disk_bytes = bench.disk_bytes() - empty_disk_bytes
    open_s = bench.open()
    due_s, _ = bench.run(_START_MS + 2 * HOUR_MS)
    bench.close()
    shutil.rmtree(directory / "soon")

    far = SyntheticEntries(_START_MS + _FAR_MS + strides % _SPAN_MS)
    bench = _Bench(directory / "far", store, far)
    bench.run(_START_MS)
    waits = [bench.run(_START_MS + day * DAY_MS) for day in range(1, _WAIT_DAYS + 1)]
    bench.close()
    return {
        "absorb_per_s": count / absorb_s,
        "absorb_written_bytes": absorb_bytes / count,
        "disk_bytes": disk_bytes / count,
        "due_per_s": count / due_s,
        "month_written_bytes": sum(written for _, written in waits) / count,
        "month_s": sum(took_s for took_s, _ in waits),
        "memory_mb": memory_mb,
        "open_ms": open_s * 1000,
    }


def _settled_mb() -> float:
    gc.collect()
    give_back_memory()
    return anonymous_mb()


def main(arguments: list[str]) -> None:
    store, parent, count = arguments
    directory = Path(tempfile.mkdtemp(prefix="tidemill-bench-", dir=parent))
    try:
        print(json.dumps(measure(StoreKind(store), directory, int(count))))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
