"""A word before the disk is full: in the log, in `status` and in the metrics, while there is time to act.

Owns when a disk counts as low: less than a tenth of it is free, and less than 50 GiB (a tenth of a large disk
is no reason to wake anybody), or less than twice the ballast, the space that the broker itself keeps back.
"""

from __future__ import annotations

import asyncio
import logging
import os

from tidemill.broker.broker import Broker
from tidemill.core.limits import MIB

logger = logging.getLogger(__name__)

_GIB = 1024 * MIB
_ENOUGH_BYTES = 50 * _GIB
_FREE_SHARE_MIN = 0.10
_BALLASTS_MIN = 2
_LOOK_EVERY_S = 10.0


def is_low(free_bytes: int, total_bytes: int, ballast_bytes: int) -> bool:
    """Whether that much room is too little to be calm about."""
    if free_bytes < _BALLASTS_MIN * ballast_bytes:
        return True
    return free_bytes < total_bytes * _FREE_SHARE_MIN and free_bytes < _ENOUGH_BYTES


def is_disk_low(broker: Broker) -> bool:
    """Whether the disk under a broker is nearly full."""
    try:
        found = os.statvfs(broker.directory)
    except OSError:
        return False  # the directory is gone; that is told elsewhere, and louder
    free_bytes = broker.disk.free_bytes(broker.directory)
    return is_low(free_bytes, found.f_blocks * found.f_frsize, broker.store.ballast.size)


class DiskWatch:
    """Looks at the disk now and then, and tells the log when it becomes low, and when it no longer is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._was_low = False

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        now_low = is_disk_low(self._broker)
        if now_low and not self._was_low:
            free_mib = self._broker.disk.free_bytes(self._broker.directory) // MIB
            logger.warning(
                "the disk is nearly full: %d MiB are free; make room or shorten --retention, "
                "or sends will be refused",
                free_mib,
            )
        elif self._was_low and not now_low:
            logger.warning("the disk has room again")
        self._was_low = now_low
