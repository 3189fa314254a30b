"""What the benches share: options, a directory with enough space, waits, and what this process uses."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tidemill.broker.broker import Broker
from tidemill.cli.child_processes import wait_for
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import RequestError
from tidemill.core.limits import MIB
from tidemill.log.disk import RealDisk
from tidemill.timer.target import read_cursor, shard_directories

DataOption = Annotated[
    Path | None, typer.Option(help="Where to work; a new directory in it is removed at the end.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One flat JSON object.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Small counts: does it run, not how fast.")]


@contextmanager
def work_directory(parent: Path | None, needed: int = 0) -> Iterator[Path]:
    """A new directory below `parent`, removed at the end; an error where the disk has fewer bytes free."""
    parent = parent or Path(tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    free = RealDisk().free_bytes(parent)
    if free < needed:
        raise RequestError(
            f"{parent} has {free >> 20:,} MiB free, measuring needs {needed >> 20:,}; "
            "name another place with --data"
        )
    directory = Path(tempfile.mkdtemp(prefix="tidemill-bench-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_until_absorbed(broker: Broker) -> None:
    """Return when every shard of the timer has absorbed all that is safe."""
    what = "the timer absorbs what was sent; is the disk full or very slow?"
    wait_for(what, lambda: _absorbed_seq(broker.directory) >= broker.store.safe_seq())


def _absorbed_seq(directory: Path) -> int:
    disk = RealDisk()
    cursors = [read_cursor(disk, shard) for shard in shard_directories(disk, directory / "timer")]
    return min((cursor.seq for cursor in cursors if cursor is not None), default=0)


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run `work(index)` in so many threads; returns how long that took. An error in one of them is raised."""
    begun_s = stopwatch_s()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
    return stopwatch_s() - begun_s


def anonymous_mb() -> float:
    """Memory that is not backed by a file."""
    return _number("/proc/self/status", "RssAnon:") * 1024 / MIB


def written_bytes() -> int:
    """Bytes this process has written to files, also those that the kernel has yet to write."""
    return _number("/proc/self/io", "write_bytes:")


def _number(path: str, label: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(label)), 0)
