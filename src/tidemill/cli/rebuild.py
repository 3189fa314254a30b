"""`tidemill rebuild DIR`: every derived file again, from the commit log.

Puts `index/` and `timer/` aside under the directory's lock, opens the directory (which derives them anew)
and checks it. What was put aside goes when the new files are there, and comes back if the log cannot be
read: a rebuild never leaves a directory worse than it was. The consumers' state is not derived: only where it
is lost, and only if asked to, a rebuild begins an empty one; what is left of the old stays beside it.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.check import lines_of, report_on
from tidemill.cli.connecting import JsonOption
from tidemill.cli.data_directory import DirectoryArgument, open_quietly, require_data_directory, shape_of
from tidemill.cli.output import Answer, bar
from tidemill.core.errors import CorruptionError, TidemillError
from tidemill.core.limits import SEGMENT_BYTES
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk, RealDisk
from tidemill.log.segments import SegmentedLog
from tidemill.store.consumers.consumer_log import (
    CONSUMERS_NAME,
    ConsumerLog,
    begin_consumers,
    consumer_checkpoint,
)
from tidemill.store.index_checkpoint import INDEX_FORMAT, checkpoint_head, require_own
from tidemill.store.message_store import StoreSettings

_DERIVED = ("index", "timer")
_ASIDE = ".before-rebuild"


def rebuild(
    directory: DirectoryArgument,
    new_consumers: Annotated[
        bool,
        typer.Option(
            "--new-consumers",
            help="Where the consumers' state is lost, begin without groups: all is delivered again.",
        ),
    ] = False,
    is_json: JsonOption = False,
) -> int:
    """Derive every other file again from the commit log, then check."""
    require_data_directory(directory)
    disk = RealDisk()
    lock = disk.lock(directory / "LOCK", "tidemill rebuild")
    try:
        shape = shape_of(directory)
        _require_whole_log(disk, directory)
        consumers = _begin_consumers_again(disk, directory) if new_consumers else ""
        _put_aside(disk, directory)
    finally:
        lock.release()
    try:
        with bar("1 of 2: deriving from the log") as advance:
            broker = open_quietly(directory, shape, advance)
        with broker:
            status, topics = broker.status(), len(broker.views.topics())
            report = report_on(broker, "2 of 2: checking against the log")
    except TidemillError:
        _put_back(disk, directory)
        raise
    for name in _DERIVED:
        disk.remove_tree(directory / f"{name}{_ASIDE}")
    fields = {**asdict(report), "topics": topics, "sent": status.sent, "consumers": consumers}
    rebuilt = (
        f"rebuilt from {status.log_bytes:,} bytes of log: {topics:,} topics, {status.sent:,} messages, "
        f"{status.pending:,} pending, {status.released:,} released, {status.cancelled:,} cancelled"
    )
    lines = [*filter(None, [consumers]), rebuilt, *lines_of(report)]
    return Answer(fields, lambda: lines, report.is_sound).print(is_json)


def _safe_end(disk: Disk, directory: Path, log: SegmentedLog) -> int:
    """Up to where the old index checkpoint says the log was safe; 0 where there is none of this log."""
    index, decode = directory / "index", partial(require_own, log)
    try:
        content = Checkpoint(disk, index, "checkpoint", INDEX_FORMAT, decode).load()
        return int(checkpoint_head(content)["offset"]) if content is not None else 0
    except TidemillError:
        return 0


def _require_whole_log(disk: Disk, directory: Path) -> None:
    """Refuse a log that ends before what was safe: derived files are the only sign that more was there."""
    log = SegmentedLog(disk, directory / "log", segment_bytes=SEGMENT_BYTES, opening=lambda _: (0, b""))
    try:
        safe_end, end = _safe_end(disk, directory, log), log.readable_end()
    finally:
        log.close()
    if end < safe_end:
        raise CorruptionError(
            f"{directory}: the log does not read back beyond offset {end}, but was safe up to {safe_end}: "
            "files are missing or damaged. Nothing was changed. Restore them from a backup, or copy what can "
            f"be read: `tidemill salvage {directory} --to NEW`"
        )


def _begin_consumers_again(disk: Disk, directory: Path) -> str:
    """Create the consumers' state again if it is lost; returns what was done, as text."""
    consumers, aside = directory / CONSUMERS_NAME, directory / f"{CONSUMERS_NAME}{_ASIDE}"
    if not _are_lost(disk, consumers):
        return "the consumers' state is there and stays as it is"
    kept = ""
    if disk.names(consumers):
        disk.remove_tree(aside)
        disk.rename(consumers, aside)
        kept = f"; what was left of the old one is in {aside}"
    begin_consumers(disk, consumers)
    return f"the consumers' state was lost: every group begins again with all messages{kept}"


def _are_lost(disk: Disk, consumers: Path) -> bool:
    """Whether the consumers' state cannot be read; a torn tail of its log is cut, as opening does."""
    if consumer_checkpoint(disk, consumers).load() is None:
        return True
    settings, log = StoreSettings(), None
    try:
        log = ConsumerLog(
            disk, consumers, segment_bytes=settings.consumer_segment_bytes, in_flight_max=1, is_sync=True
        )
        log.recover()
    except CorruptionError:
        return True
    finally:
        if log is not None:
            log.close()
    return False


def _put_aside(disk: Disk, directory: Path) -> None:
    for name in _DERIVED:
        aside = directory / f"{name}{_ASIDE}"
        if disk.exists(directory / name):
            disk.remove_tree(aside)  # of an earlier rebuild that was interrupted
            disk.rename(directory / name, aside)
    disk.sync_dir(directory)


def _put_back(disk: Disk, directory: Path) -> None:
    for name in _DERIVED:
        aside = directory / f"{name}{_ASIDE}"
        if disk.exists(aside):
            disk.remove_tree(directory / name)
            disk.rename(aside, directory / name)
