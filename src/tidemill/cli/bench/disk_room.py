"""Whether a disk has room for a measurement: looked at before, because a full one stops others too."""

from __future__ import annotations

from pathlib import Path

from tidemill.core.errors import RequestError
from tidemill.log.disk import RealDisk


def require_room(parent: Path, needed: int) -> None:
    """An error that says what to do where fewer bytes are free."""
    free = RealDisk().free_bytes(parent)
    if free < needed:
        raise RequestError(
            f"{parent} has {free >> 20:,} MiB free, measuring needs {needed >> 20:,}; "
            "name another place with --data"
        )
