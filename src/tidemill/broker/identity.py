"""Who a data directory is: its broker id, the format that everything in it follows, and that it is whole.

Owns the file pair `identity.0/1`, which both say the same. It is written when all that a directory must never
be without is there, and says so (`has_consumers`): what is missing later was lost. Directories made before it
said so are marked when they are opened with a consumers' checkpoint; until then theirs may be missing.

Owns also the rule which directory may become a data directory: an empty one. One that holds other files, and
neither an identity nor a log, belongs to another program, and nothing is written there.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from pathlib import Path

from tidemill.core.errors import CorruptionError, DiskFullError, StorageError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.store.consumers.consumer_log import CONSUMERS_NAME, begin_consumers, consumer_checkpoint

DIRECTORY_FORMAT = 1
IDENTITY_NAME = "identity"
_HAS_CONSUMERS = "has_consumers"
# Stands in a directory while a salvage fills it.
UNFINISHED_NAME = "salvage.unfinished"
# What may lie in a directory without an identity: what a new file system begins with, what a process that was
# killed at its very start has made, and empty directories that stand ready for a file system of their own.
_FILES_OF_A_START = frozenset(("LOCK", "lost+found"))
_NEW_FILE_SYSTEM = frozenset(("lost+found",))
_PARTS_OF_A_START = {
    "log": _NEW_FILE_SYSTEM,
    "index": _NEW_FILE_SYSTEM,
    "timer": _NEW_FILE_SYSTEM,
    "tls": frozenset(("cert.pem", "key.pem", "cert.new", "key.new", "live")),
    CONSUMERS_NAME: frozenset(("checkpoint.0", "checkpoint.1")),
}
_SEGMENT = re.compile(r"\d{20}\.log")
_NAMES_SHOWN = 3


def _checkpoint(disk: Disk, directory: Path) -> Checkpoint:
    return Checkpoint(disk, directory, IDENTITY_NAME, DIRECTORY_FORMAT, broker_id_in)


def require_usable(disk: Disk, directory: Path) -> None:
    """`StorageError` unless this is a data directory, is empty, or is not there yet. Makes nothing."""
    names = disk.names(directory)
    foreign = [name for name in names if not _is_of_a_start(disk, directory, name)]
    is_ours = f"{IDENTITY_NAME}.0" in names or f"{IDENTITY_NAME}.1" in names or UNFINISHED_NAME in names
    if not foreign or is_ours or any(map(_SEGMENT.fullmatch, disk.names(directory / "log"))):
        return
    found = ", ".join(foreign[:_NAMES_SHOWN])
    if len(foreign) > _NAMES_SHOWN:
        found += f" and {len(foreign) - _NAMES_SHOWN} more"
    raise StorageError(
        f"{directory} is not empty and not a data directory: it holds {found}. Nothing was written; "
        "name a new or an empty directory, or the one that the broker was opened with"
    )


def _is_of_a_start(disk: Disk, directory: Path, name: str) -> bool:
    inside = _PARTS_OF_A_START.get(name)
    if inside is None:
        return name in _FILES_OF_A_START
    return inside.issuperset(disk.names(directory / name))


def broker_id_of(disk: Disk, directory: Path) -> str:
    """The directory's broker id, made on first use; `NewerFormatError` if a newer Tidemill wrote it."""
    if disk.exists(directory / UNFINISHED_NAME):
        raise StorageError(
            f"{directory}: the salvage into this directory did not finish; remove it and start again"
        )
    checkpoint = _checkpoint(disk, directory)
    content = checkpoint.load()
    has_log = any(name.endswith(".log") for name in disk.names(directory / "log"))
    consumers = consumer_checkpoint(disk, directory / CONSUMERS_NAME)
    has_consumers = consumers.load() is not None
    if content is not None:
        known = json.loads(content)
        if has_consumers and not known.get(_HAS_CONSUMERS):
            with suppress(DiskFullError):  # the next opening will do as well
                consumers.make_safe()
                checkpoint.save(json.dumps({**known, _HAS_CONSUMERS: True}).encode(), sync=True)
        elif not has_consumers and known.get(_HAS_CONSUMERS):
            raise CorruptionError(_lost_consumers(directory))
        elif not has_log:  # a process killed at its very start may have left it written but not safe
            checkpoint.save(content, sync=True)
        with suppress(DiskFullError):
            checkpoint.keep_twice()
        return str(known["broker_id"])
    if has_log:
        raise StorageError(
            f"{directory}: the log is there, its identity file is missing or damaged. If this is a backup "
            "that was not finished, remove it and make it again; else restore a backup, or "
            f"`tidemill salvage {directory} --to NEW`"
        )
    broker_id = new_broker_id()
    if has_consumers:
        consumers.make_safe()  # a process killed at its very start may not have come so far
    else:
        begin_consumers(disk, directory / CONSUMERS_NAME)
    write_identity(disk, directory, broker_id)
    return broker_id


def write_identity(disk: Disk, directory: Path, broker_id: str) -> None:
    """Make a directory that has its log and its consumers' state a data directory, durably."""
    content = json.dumps({"broker_id": broker_id, _HAS_CONSUMERS: True}).encode()
    checkpoint = _checkpoint(disk, directory)
    checkpoint.save(content, sync=True)
    checkpoint.keep_twice()


def new_broker_id() -> str:
    return secrets.token_hex(4).upper()


def broker_id_in(content: bytes) -> str:
    """The broker id in the content of an identity file."""
    return str(json.loads(content)["broker_id"])


def _lost_consumers(directory: Path) -> str:
    return (
        f"{directory / CONSUMERS_NAME}: the consumers' checkpoint is missing or damaged, so it is not known "
        "what was acknowledged. Nothing was changed. Restore that directory from a backup; to copy what can "
        f"be read, `tidemill salvage {directory} --to NEW`; to have every group begin again with all "
        f"messages, `tidemill rebuild --new-consumers {directory}`"
    )


def require_broker(disk: Disk, directory: Path, broker_id: str) -> None:
    """`StorageError` unless this is the directory of that broker. Makes nothing."""
    content = _checkpoint(disk, directory).load()
    if content is None:
        what = "has no identity" if disk.exists(directory) else "is not there"
        raise StorageError(
            f"the data directory {directory} {what}: was it removed, renamed or unmounted? Restore it; "
            "no new one is created in its place"
        )
    found = broker_id_in(content)
    if found != broker_id:
        raise StorageError(
            f"{directory} is the data directory of broker {found} now, not of {broker_id}; restore that one"
        )
