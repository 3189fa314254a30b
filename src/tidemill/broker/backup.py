"""A consistent copy of a live broker: the truth at one moment. Everything derived is left to be rebuilt.

Under the writer's lock everything written is made safe and the moment is noted: where the log ends, and the
consumer state as it is then. The bytes are copied afterwards, beside the running broker: what lies below
the noted end never changes, and the head is not cut while the copy is made. The identity is written last,
so a copy that was broken off is not taken for a data directory. Opening the copy restores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.broker.level_table import LEVELS_NAME
from tidemill.core.errors import RequestError
from tidemill.core.limits import MIB
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.log.head_record import HeadRecord
from tidemill.store.consumer_log import CONSUMER_FORMAT

_COPY_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds."""

    directory: Path
    log_end: int
    file_count: int
    byte_count: int
    pending: int


class CopyProgress:
    """How far the backup under way is: bytes of log copied, and to copy; both 0 while there is none."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def begin(self, total: int) -> None:
        self.done, self.total = 0, total

    def add(self, count: int) -> None:
        self.done += count


def back_up(broker: Broker, target: Path, progress: CopyProgress | None = None) -> BackupReport:
    """Copy the broker into `target`, which must be new or empty."""
    progress = progress or CopyProgress()
    try:
        return _back_up(broker, target, progress)
    except FileNotFoundError as error:
        raise RequestError(
            f"cannot make the backup in {target}: {error.strerror}; name a directory that can be made there"
        ) from None
    finally:
        progress.begin(0)


def _back_up(broker: Broker, target: Path, progress: CopyProgress) -> BackupReport:
    disk, store = broker.disk, broker.store
    target = target.absolute()
    source = broker.directory.absolute()
    if target == source or source in target.parents:
        raise RequestError(f"{target} lies inside the data directory; name a directory elsewhere")
    if disk.names(target):
        raise RequestError(f"{target} is not empty; name a new directory")
    for part in (target, target / "log", target / "consumers"):
        disk.make_dir(part)
    with store.upkeep_lock:
        with store.writer.lock:
            log_end = store.writer.finish_all()
            starts = store.log.segment_starts()
            consumers = store.consumers.snapshot(log_end)
            pending = sum(store.indexes.due_counts.pending(topic.id) for topic in store.indexes.topics)
        progress.begin(log_end - starts[0] if starts else 0)
        sizes = [
            _copy(disk, source / "log" / name, target / "log" / name, end - start, progress)
            for start, end in zip(starts, [*starts, log_end][1:], strict=True)
            if (name := f"{start:020d}.log")
        ]
    Checkpoint(disk, target / "consumers", "checkpoint", CONSUMER_FORMAT).save(consumers, sync=True)
    HeadRecord(disk, target / "log").save(starts[0] if starts else 0)
    disk.sync_dir(target / "log")
    disk.sync_dir(target / "consumers")
    marks = [name for name in disk.names(source) if name.startswith(("identity.", f"{LEVELS_NAME}."))]
    marks.sort(key=lambda name: name.startswith("identity."))
    sizes += [_copy(disk, source / name, target / name, None, progress) for name in marks]
    disk.sync_dir(target)
    return BackupReport(target, log_end, len(sizes) + 1, sum(sizes) + len(consumers), pending)


def _copy(disk: Disk, source: Path, target: Path, length: int | None, progress: CopyProgress) -> int:
    """Copy the first `length` bytes of a file (all of it: None), durably."""
    reader, writer = disk.open(source), disk.open(target, create=True)
    try:
        left = reader.size() if length is None else length
        at = 0
        while at < left:
            piece = reader.read(at, min(_COPY_BYTES, left - at))
            if not piece:
                break
            writer.write(at, piece)
            at += len(piece)
            progress.add(len(piece))
        writer.sync()
    finally:
        reader.close()
        writer.close()
    return at
