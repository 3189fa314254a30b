"""Who a data directory is: its broker id, and the format that everything in it follows."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from tidemill.core.errors import StorageError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk

DIRECTORY_FORMAT = 1
_NAME = "identity"


def broker_id_of(disk: Disk, directory: Path) -> str:
    """The directory's broker id, made on first use; `NewerFormat` if a newer Tidemill wrote the directory."""
    checkpoint = Checkpoint(disk, directory, _NAME, DIRECTORY_FORMAT)
    content = checkpoint.load()
    has_log = any(name.endswith(".log") for name in disk.names(directory / "log"))
    if content is not None:
        if not has_log:  # a process killed at its very start may have left it written but not safe
            checkpoint.save(content, sync=True)
        return str(json.loads(content)["broker_id"])
    if has_log:
        raise StorageError(
            f"{directory}: the log is there, its identity file is missing or damaged; restore a backup"
        )
    broker_id = secrets.token_hex(4).upper()
    checkpoint.save(json.dumps({"broker_id": broker_id}).encode(), sync=True)
    return broker_id


def require_broker(disk: Disk, directory: Path, broker_id: str) -> None:
    """`StorageError` unless this is the directory of that broker. Makes nothing."""
    content = Checkpoint(disk, directory, _NAME, DIRECTORY_FORMAT).load()
    if content is None:
        what = "has no identity" if disk.exists(directory) else "is not there"
        raise StorageError(
            f"the data directory {directory} {what}: was it removed, renamed or unmounted? Bring it back; "
            "nothing is made in its place"
        )
    found = str(json.loads(content)["broker_id"])
    if found != broker_id:
        raise StorageError(
            f"{directory} is the data directory of broker {found} by now, not of {broker_id}; bring that back"
        )
