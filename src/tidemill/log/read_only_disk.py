"""A disk that is only looked at: files are opened for reading, and nothing is ever made or changed.

For damaged directories, which may lie on a file system that is mounted read-only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tidemill.core.errors import StorageError
from tidemill.log.disk import LockHandle, lock_file

_PIECE_BYTES = 1 << 20
_PAGE_BYTES = 4096


class _Nothing:
    """No lock: there is no lock file, so no broker has ever opened the directory."""

    def release(self) -> None:
        return


class ReadOnlyDisk:
    """Files as they are. Pages that the device cannot read come as zeros, and are counted."""

    def __init__(self) -> None:
        self.unreadable_bytes = 0

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, directory: Path) -> list[str]:
        """Sorted names in `directory`; empty when there is none."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytearray:
        """Bytes of a file (to its end: None); fewer than `length` only at the end of the file."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}; check the disk and its permissions") from error
        try:
            size = os.fstat(fd).st_size
            end = size if length is None else min(size, offset + length)
            data = bytearray(max(0, end - offset))
            self._fill(fd, memoryview(data), offset)
        finally:
            os.close(fd)
        return data

    def _fill(self, fd: int, target: memoryview, offset: int) -> None:
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            if self._read_into(fd, piece, offset + start):
                continue
            for page in range(0, len(piece), _PAGE_BYTES):
                part = piece[page : page + _PAGE_BYTES]
                if not self._read_into(fd, part, offset + start + page):
                    self.unreadable_bytes += len(part)

    @staticmethod
    def _read_into(fd: int, target: memoryview, offset: int) -> bool:
        try:
            os.preadv(fd, [target], offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return True

    def lock(self, path: Path) -> LockHandle:
        """Take an exclusive lock on a file without writing to it; `DirectoryLockedError` if it is held."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _Nothing()
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}; check the disk and its permissions") from error
        return lock_file(fd, path, "stop it first")
