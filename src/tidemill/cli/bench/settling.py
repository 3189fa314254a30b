"""Waits until the timer of a broker has absorbed what was sent."""

from __future__ import annotations

import threading
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.log.disk import RealDisk
from tidemill.timer.target import read_cursor, shard_directories

_PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.1


def wait_until_absorbed(broker: Broker) -> None:
    """Return when every shard of the timer has absorbed all that is safe."""
    until_s = stopwatch_s() + _PATIENCE_S
    while _absorbed_seq(broker.directory) < broker.store.safe_seq():
        if stopwatch_s() > until_s:
            raise StorageError("the timer did not absorb what was sent; is the disk full or very slow?")
        threading.Event().wait(_LOOK_EVERY_S)


def _absorbed_seq(directory: Path) -> int:
    disk = RealDisk()
    cursors = [read_cursor(disk, shard) for shard in shard_directories(disk, directory / "timer")]
    return min((cursor.seq for cursor in cursors if cursor is not None), default=0)
