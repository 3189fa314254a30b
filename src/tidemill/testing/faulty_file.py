"""One open file on a `FaultyDisk`: writes to the real file and records what a power cut could undo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tidemill.core.errors import DiskFullError, SyncFailedError
from tidemill.log.arrays import I64, Rows
from tidemill.log.disk import ByteArray, Bytes, DiskFile
from tidemill.testing.faults import FaultInjector, SimulatedCrash
from tidemill.testing.space import BLOCK_BYTES, FileSpace
from tidemill.testing.unsynced import UnsyncedChanges


class FileNode:
    """A file apart from its names: the real file, what is not synced of it, how often it is open."""

    def __init__(self, path: Path, real: DiskFile, space: FileSpace) -> None:
        self.path: Path | None = path  # its present name; None once it has none
        self.real = real
        self.space = space
        self.unsynced = UnsyncedChanges()
        self.handle_count = 0


class FaultyFile:
    """One opening of a node. `free_bytes` says the space left on the disk; `closed` is called at the end."""

    def __init__(
        self,
        path: Path,
        node: FileNode,
        faults: FaultInjector,
        free_bytes: Callable[[], int],
        closed: Callable[[FileNode], None],
    ) -> None:
        self.path = path
        self._node = node
        self._faults = faults
        self._free_bytes = free_bytes
        self._closed = closed
        self._is_open = True

    def size(self) -> int:
        with self._faults.passing():
            return self._node.real.size()

    def read(self, offset: int, length: int) -> bytes:
        with self._faults.passing():
            return self._node.real.read(offset, length)

    def map(self, length: int) -> ByteArray:
        with self._faults.passing():
            return self._node.real.map(length)

    def write(self, offset: int, data: Bytes) -> None:
        whole = bytes(data)
        with self._faults.passing():
            try:
                with self._faults.operation("write", self.path, f"{offset}+{len(whole)}", is_write=True):
                    self._put_what_fits(offset, whole)
            except SimulatedCrash:
                # Dying in the middle of the call leaves a first part of it, in whole pages.
                if not self._faults.plan.crash_after and self._faults.random.random() < 0.5:
                    done = self._faults.random.randrange(len(whole) + 1) // BLOCK_BYTES * BLOCK_BYTES
                    self._put(offset, whole[:done])
                raise

    def scatter(self, row_indexes: I64, rows: Rows) -> None:
        with self._faults.operation("scatter", self.path, f"{len(rows)} rows", is_write=True):
            node, size = self._node, self._node.real.size()
            offsets = np.asarray(row_indexes, np.int64) * rows.itemsize
            missing = node.space.missing_for_rows(offsets, rows.itemsize)
            if missing and len(missing) * BLOCK_BYTES > self._free_bytes():
                raise self._no_room()
            whole = size // rows.itemsize * rows.itemsize
            replaced = node.real.map(whole).view(rows.dtype)[row_indexes]
            node.real.scatter(row_indexes, rows)
            node.space.allocate_blocks(missing)
            node.unsynced.scattered(offsets, rows, replaced, size)

    def preallocate(self, length: int) -> None:
        with self._faults.operation("preallocate", self.path, length, is_write=True):
            node, size = self._node, self._node.real.size()
            missing_bytes = node.space.missing_bytes(0, length)
            if missing_bytes and missing_bytes > self._free_bytes():
                raise self._no_room()
            node.real.preallocate(length)
            node.space.allocate(0, length)
            if length > size:
                node.unsynced.resized(size, length, b"")

    def truncate(self, length: int) -> None:
        with self._faults.operation("truncate", self.path, length, is_write=True):
            node, size = self._node, self._node.real.size()
            lost_tail = node.real.read(length, size - length).rstrip(b"\0") if length < size else b""
            node.real.truncate(length)
            node.space.cut(length)
            node.unsynced.resized(size, length, lost_tail)

    def sync(self) -> None:
        with self._faults.operation("sync", self.path):
            if self._faults.sync_shall_fail():
                self._node.unsynced.sync_failed()
                raise SyncFailedError(
                    f"{self.path}: sync failed (planned fault); check the disk, then start again"
                )
            self._node.unsynced.synced()

    def close(self) -> None:
        # Allowed after a crash as well: unwinding code closes what it opened.
        with self._faults.lock:
            if self._is_open and not self._faults.is_shut:
                self._node.handle_count -= 1
                self._closed(self._node)
            self._is_open = False

    def _put_what_fits(self, offset: int, data: bytes) -> None:
        """Put all of it, or as the real call does what there is space for, and say that the disk is full."""
        missing_bytes = self._node.space.missing_bytes(offset, len(data))
        if missing_bytes and missing_bytes > (free_bytes := self._free_bytes()):
            self._put(offset, data[: self._node.space.fitting_bytes(offset, len(data), free_bytes)])
            raise self._no_room()
        self._put(offset, data)

    def _put(self, offset: int, data: bytes) -> None:
        if data:
            node, size = self._node, self._node.real.size()
            replaced = node.real.read(offset, len(data))
            node.real.write(offset, data)
            node.space.allocate(offset, len(data))
            node.unsynced.wrote(offset, data, replaced, size)

    def _no_room(self) -> DiskFullError:
        return DiskFullError(f"no space left on the disk for {self.path.name}; free space on that disk")
