"""Ballast: disk space held back, so that a full disk stops what adds messages and nothing else.

Owns one preallocated file. Sends are taken only while it is whole. When a derived file finds the disk full, a
quarter of the ballast is deleted to free space; the ballast is filled up again before the next send.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from tidemill.core.errors import DiskFullError
from tidemill.core.limits import MIB
from tidemill.log.disk import Disk

BALLAST_BYTES = 64 * MIB


class Ballast:
    """Space in reserve under one name."""

    def __init__(self, disk: Disk, path: Path, size: int) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        # Protects _held and the file: any thread that finds the disk full frees some.
        self._lock = threading.Lock()
        self._held = 0

    @property
    def size(self) -> int:
        """Bytes of the whole ballast."""
        return self._size

    @property
    def missing_bytes(self) -> int:
        return self._size - self._held

    @property
    def is_whole(self) -> bool:
        return self._held == self._size

    def require_whole(self) -> None:
        """Return if the ballast is whole or can be made whole; `DiskFullError` if not."""
        if self.is_whole:
            return
        with self._lock, closing(self._disk.open(self._path, create=True)) as file:
            try:
                file.preallocate(self._size)
            except DiskFullError as error:
                free_bytes = max(0, self._disk.free_bytes(self._path.parent))
                raise DiskFullError(
                    f"the disk is full: {self._size - file.size():,} more bytes are needed to keep releases "
                    f"going, {free_bytes:,} are free; free space on that disk"
                ) from error
            self._held = self._size

    def fill(self) -> bool:
        """Make it whole if there is space."""
        try:
            self.require_whole()
        except DiskFullError:
            return False
        return True

    def throw_some(self) -> bool:
        """Free a quarter of the ballast; False when none is left."""
        with self._lock:
            if not self._disk.exists(self._path):
                return False
            with closing(self._disk.open(self._path)) as file:
                held = self._held or file.size()
                if not held:
                    return False
                self._held = max(0, held - max(1, self._size // 4))
                file.truncate(self._held)
            return True
