"""Sorted keys on a `FaultyDisk`: real RocksDB, whose process can die at every write and every sync.

RocksDB does its own I/O, so a crash is made from outside, on its files. A kill leaves them as they are: they
are copied while the database is open, since closing would write more, and the copy takes their place. A
power cut also tears its write-ahead log, anywhere behind what was synced; that is the one file whose bytes
RocksDB promises only after a sync (it syncs a table or a manifest before it relies on it).

    write    counted as a write, before it takes effect
    sync     counted as a sync; may fail as planned

Invariant: after a crash no call on these keys has any effect.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tidemill.core.errors import DiskFullError, SyncFailedError
from tidemill.log.sorted_keys import KeyRows, RocksKeys
from tidemill.testing.faults import FaultInjector

_LOG_SUFFIX = ".log"
_SHADOW_SUFFIX = ".shadow"
_COPY_ATTEMPTS_MAX = 20


class FaultyKeys(RocksKeys):
    """One opening of a directory of sorted keys. `free_bytes` says the space left on the disk."""

    def __init__(
        self,
        directory: Path,
        key_bytes: int,
        faults: FaultInjector,
        free_bytes: Callable[[], int],
        *,
        read_only: bool,
    ) -> None:
        super().__init__(directory, key_bytes, read_only=read_only)
        self._faults = faults
        self._free_bytes = free_bytes
        self._synced = _log_sizes(directory)
        self._is_read_only = read_only

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def note(self) -> bytes | None:
        with self._faults.passing():
            return super().note()

    def scan(self, first: bytes, end: bytes, count_max: int) -> KeyRows:
        with self._faults.passing():
            return super().scan(first, end, count_max)

    def drop(self, first: bytes, end: bytes) -> None:
        with self._faults.operation("drop keys", self._directory, is_write=True):
            super().drop(first, end)

    def close(self) -> None:
        # Allowed after a crash as well; what the dead process left is safe in the copy by then.
        with self._faults.lock:
            super().close()

    def _put(self, rows: KeyRows, note: bytes | None) -> None:
        with self._faults.operation("write keys", self._directory, len(rows), is_write=True):
            if rows.nbytes > self._free_bytes():
                raise DiskFullError("no space left on the disk for RocksDB; free space on that disk")
            super()._put(rows, note)

    def _sync(self) -> None:
        with self._faults.operation("sync", self._directory):
            if self._faults.sync_shall_fail():
                raise SyncFailedError(f"{self._directory}: sync failed (planned fault); check the disk")
            super()._sync()
            self._synced = _log_sizes(self._directory)

    def leave(self, *, power_cut: bool, random: Random) -> None:
        """Make the directory what the next process finds, and let go of it."""
        if self._db is None or self._is_read_only:
            super().close()
            return
        shadow = self._directory.with_name(self._directory.name + _SHADOW_SUFFIX)
        _copy_living(self._directory, shadow)
        super().close()
        shutil.rmtree(self._directory)
        os.replace(shadow, self._directory)
        if power_cut:
            self._tear_log(random)

    def _tear_log(self, random: Random) -> None:
        """Keep of the newest log what was synced, and by chance some of what was not."""
        for name, size in sorted(_log_sizes(self._directory).items()):
            synced = min(size, self._synced.get(name, 0))
            os.truncate(self._directory / name, random.randint(synced, size))


def _copy_living(source: Path, target: Path) -> None:
    """Copy a directory that RocksDB's own threads may be changing; begins anew when a file went meanwhile."""
    for attempt in range(_COPY_ATTEMPTS_MAX):
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            if attempt + 1 == _COPY_ATTEMPTS_MAX:
                raise


def _log_sizes(directory: Path) -> dict[str, int]:
    """Length of each write-ahead log there is."""
    return {path.name: path.stat().st_size for path in directory.glob(f"*{_LOG_SUFFIX}")}
