"""A consistent copy of a live broker: the truth at one moment. Everything derived is left to be rebuilt.

Under the writer's lock everything written is made safe and the moment is noted: where the log ends, and the
consumer state as it is then. The bytes are copied afterwards, beside the running broker: what lies below
the noted end never changes, and the head is not cut while the copy is made. The identity is written last,
so a copy that was broken off is not taken for a data directory. Opening the copy restores it.

A copy for which there is no space is refused before it begins, and one that fails is removed: what it leaves
would keep a full disk full, and its name taken.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.broker.control.holds import HOLDS_NAME
from tidemill.broker.control.simulated_time import CLOCK_NAME
from tidemill.broker.level_table import LEVELS_NAME
from tidemill.core.answers import Backup
from tidemill.core.errors import DiskFullError, RequestError, TidemillError
from tidemill.core.limits import MIB
from tidemill.log.disk import Disk
from tidemill.log.head_record import HeadRecord
from tidemill.store.consumers.consumer_log import CONSUMERS_NAME, consumer_checkpoint

_PARTS = ("log", CONSUMERS_NAME)
_MARKS = ("identity.", f"{LEVELS_NAME}.", f"{CLOCK_NAME}.", f"{HOLDS_NAME}.")
_COPY_BYTES = 4 * MIB
# Beside log and consumers' state: the identity, and what the file system itself takes.
_BESIDE_BYTES = MIB


class CopyProgress:
    """How far the backup under way is: bytes of log copied, and to copy; both 0 while there is none."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def begin(self, total: int) -> None:
        self.done, self.total = 0, total

    def add(self, count: int) -> None:
        self.done += count


def back_up(broker: Broker, target: Path, progress: CopyProgress | None = None) -> Backup:
    """Copy the broker into `target`, which must be new or empty."""
    progress = progress or CopyProgress()
    try:
        return _back_up(broker, target, progress)
    except FileNotFoundError as error:
        raise RequestError(
            f"cannot make the backup in {target}: {error.strerror}; name a directory that can be created"
        ) from None
    finally:
        progress.begin(0)


def _back_up(broker: Broker, target: Path, progress: CopyProgress) -> Backup:
    disk, store = broker.disk, broker.store
    target = target.absolute()
    source = broker.directory.absolute()
    if target == source or source in target.parents:
        raise RequestError(f"{target} lies inside the data directory; name a directory elsewhere")
    _require_empty(disk, target)
    with store.upkeep_lock:
        _require_empty(disk, target)  # another backup may have been made there while we waited for it
        was_there = disk.exists(target)
        try:
            return _copy_all(broker, source, target, progress)
        except Exception:
            with suppress(TidemillError, OSError):  # the first error is the one to report
                _remove_copy(disk, target, was_there=was_there)
            raise


def _require_empty(disk: Disk, target: Path) -> None:
    if disk.names(target):
        raise RequestError(f"{target} is not empty; name a new directory")


def _require_space(broker: Broker, target: Path, copy_bytes: int) -> None:
    """`DiskFullError` unless the copy fits; on the broker's own disk its log can still grow beside it."""
    disk, store = broker.disk, broker.store
    needed = copy_bytes + _BESIDE_BYTES
    here, there = disk.place_of(broker.directory), disk.place_of(target)
    if here is not None and there is not None and here[0] == there[0]:
        needed += store.disk_space.view().refuse_below_bytes + store.settings.segment_bytes
    free = max(0, disk.free_bytes(target))
    if free < needed:
        raise DiskFullError(
            f"no space for a backup in {target}: it needs {needed:,} bytes with what must stay free, and "
            f"{free:,} are free; free space or name a directory on another disk"
        )


def _remove_copy(disk: Disk, target: Path, *, was_there: bool) -> None:
    """Take away what a copy left in `target`, which was empty; the directory too unless it was there."""
    if not was_there:
        disk.remove_tree(target)
        return
    for name in disk.names(target):
        if name in _PARTS:
            disk.remove_tree(target / name)
        else:
            disk.remove(target / name)


def _copy_all(broker: Broker, source: Path, target: Path, progress: CopyProgress) -> Backup:
    """Make the copy, under the upkeep lock."""
    disk, store = broker.disk, broker.store
    with store.read():
        log_end = store.finish_all()
        starts = store.log.segment_starts()
        consumers = store.consumers.snapshot(log_end)
        pending = sum(store.due_counts.pending(topic.id) for topic in store.topics)
    log_bytes = log_end - starts[0] if starts else 0
    disk.make_dir(target)  # first: where nothing can be made, its free space means nothing
    _require_space(broker, target, log_bytes + len(consumers))
    for name in _PARTS:
        disk.make_dir(target / name)
    progress.begin(log_bytes)
    sizes = [
        _copy(disk, source / "log" / name, target / "log" / name, end - start, progress)
        for start, end in zip(starts, [*starts, log_end][1:], strict=True)
        if (name := f"{start:020d}.log")
    ]
    consumer_checkpoint(disk, target / CONSUMERS_NAME).save(consumers, sync=True)
    HeadRecord(disk, target / "log").save(starts[0] if starts else 0)
    disk.sync_dir(target / "log")
    disk.sync_dir(target / CONSUMERS_NAME)
    marks = [name for name in disk.names(source) if name.startswith(_MARKS)]
    marks.sort(key=lambda name: name.startswith("identity."))
    sizes += [_copy(disk, source / name, target / name, None, progress) for name in marks]
    disk.sync_dir(target)
    return Backup(str(target), log_end, len(sizes) + 1, sum(sizes) + len(consumers), pending)


def _copy(disk: Disk, source: Path, target: Path, length: int | None, progress: CopyProgress) -> int:
    """Copy the first `length` bytes of a file (all of it: None), durably."""
    with closing(disk.open(source)) as reader, closing(disk.open(target, create=True)) as writer:
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
        return at
