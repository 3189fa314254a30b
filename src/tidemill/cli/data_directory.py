"""Opens a data directory for the offline commands: checks that it is one, and uses its own settings.

Owns the precautions that `check` and `rebuild` take: a wrong path creates no directory, and a directory
created with other sizes than the defaults is opened with its own, so that looking at it rebuilds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tidemill.broker.broker import Broker, Sizes
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import StorageError
from tidemill.core.limits import KIB
from tidemill.log.disk import RealDisk
from tidemill.store.recovery import Progress
from tidemill.timer.settings import TimerSettings
from tidemill.timer.shard_header import decode_header, read_header
from tidemill.timer.target import shard_directories

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A data directory that no process has open.")
]
_MARKS = ("identity.0", "identity.1")
_SPARE = Path("log") / "spare"
_SEGMENT_BYTES_MIN = 4 * KIB  # a smaller file is no preallocated segment


def require_data_directory(directory: Path) -> None:
    """Refuse a path that is no data directory, before a file is created there."""
    if not directory.is_dir():
        raise StorageError(f"{directory} is not a directory; name the broker's data directory")
    if not any((directory / name).exists() for name in (*_MARKS, "log")):
        raise StorageError(
            f"{directory} is not a data directory: it has neither an identity nor a log; "
            "name the directory that the broker was opened with"
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """What a directory was made with, as far as its files tell."""

    settings: BrokerSettings
    timer: TimerSettings | None


def shape_of(directory: Path) -> Shape:
    """Tick, shards, timer store and segment size from the files; the defaults where there are none."""
    settings = BrokerSettings()
    timer = _timer_settings(directory)
    if timer is not None:
        lead_ms = max(settings.lead_ms, 2 * timer.tick_ms)
        settings = replace(
            settings,
            tick_ms=timer.tick_ms,
            shards=timer.shards,
            timer_store=timer.store.value,
            lead_ms=lead_ms,
        )
    spare = directory / _SPARE
    if spare.is_file() and spare.stat().st_size % KIB == 0 and spare.stat().st_size >= _SEGMENT_BYTES_MIN:
        settings = replace(settings, segment_bytes=spare.stat().st_size)
    return Shape(settings, timer)


def open_quietly(directory: Path, shape: Shape, on_progress: Progress | None = None) -> Broker:
    """The directory's broker with nothing running: it recovers, and then nothing happens by itself."""
    sizes = Sizes(timer=shape.timer)
    return Broker(directory, shape.settings, has_threads=False, sizes=sizes, on_progress=on_progress)


def _timer_settings(directory: Path) -> TimerSettings | None:
    """What the timer files were made for; None where there are none to read."""
    disk = RealDisk()
    for shard in shard_directories(disk, directory / "timer"):
        content = read_header(disk, shard)
        if content is not None:
            return decode_header(content)[0]
    return None
