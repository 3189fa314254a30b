"""Who a data directory is: its broker id, and the format that everything in it follows."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from tidemill.core.errors import StorageError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk

DIRECTORY_FORMAT = 1


def broker_id_of(disk: Disk, directory: Path) -> str:
    """The directory's broker id, made on first use; `NewerFormat` if a newer Tidemill wrote the directory."""
    checkpoint = Checkpoint(disk, directory, "identity", DIRECTORY_FORMAT)
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
