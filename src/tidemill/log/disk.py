"""All file access, behind one protocol, so that faults can be injected in one place.

Owns every call into the operating system that touches a file. `RealDisk` is the machine's disk;
`tidemill.testing.FaultyDisk` is the same with crashes, torn writes, failed syncs and a full disk.

Invariants:
- a write or preallocation that finds no space raises `DiskFullError`; a failed sync raises `SyncFailedError`;
- `write`, `scatter` and `read`/`map` see each other at once; only `sync` makes bytes survive a power cut;
- a name made by `open(create=True)` or `rename` survives a power cut only after `sync_dir`.

One kind of file is not touched here: those of RocksDB, which reads and writes by itself (`sorted_keys.py`).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from tidemill.core.errors import DirectoryLockedError, DiskError, DiskFullError, StorageError, SyncFailedError
from tidemill.log.arrays import I64, U8, Rows
from tidemill.log.sorted_keys import RocksKeys, SortedKeys

Bytes = bytes | bytearray | memoryview
ByteArray = U8
Place = tuple[int, int]  # file system, and number of the file or directory in it


class DiskFile(Protocol):
    """One open file, addressed by absolute byte offsets."""

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Length in bytes, preallocated bytes included."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at `offset`; fewer than `length` only at the end of the file."""
        ...

    def write(self, offset: int, data: Bytes) -> None:
        """Put `data` at `offset`, growing the file where needed."""
        ...

    def scatter(self, row_indexes: I64, rows: Rows) -> None:
        """Put each fixed-width row at `index * rows.itemsize`; all inside the present size."""
        ...

    def map(self, length: int) -> ByteArray:
        """A read-only view of the first `length` bytes; it shows later writes."""
        ...

    def preallocate(self, length: int) -> None:
        """Make the file at least `length` bytes long, with disk space behind every byte."""
        ...

    def truncate(self, length: int) -> None:
        """Set the size; bytes grown this way read as zero and may have no space behind them."""
        ...

    def sync(self) -> None:
        """Return when every byte written so far survives a power cut."""
        ...

    def close(self) -> None: ...


class LockHandle(Protocol):
    """A lock held until `release`."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile: ...

    def exists(self, path: Path) -> bool: ...

    def names(self, directory: Path) -> list[str]:
        """Sorted names in `directory`; empty when there is none."""
        ...

    def make_dir(self, directory: Path) -> None:
        """Make a directory for this user alone; one that is there stays as it is."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` atomically."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is no error."""
        ...

    def remove_tree(self, directory: Path) -> None: ...

    def sync_dir(self, directory: Path) -> None: ...

    def allocated_bytes(self, path: Path) -> int:
        """Disk space behind a file, or behind everything in a directory."""
        ...

    def free_bytes(self, path: Path) -> int: ...

    def total_bytes(self, path: Path) -> int:
        """Size of the file system that holds `path`."""
        ...

    def place_of(self, path: Path) -> Place | None:
        """What a path leads to right now; None where it leads nowhere."""
        ...

    def lock(self, path: Path, note: str) -> LockHandle:
        """Take an exclusive lock on the file, leaving `note` in it; `DirectoryLockedError` if it is held."""
        ...

    def sorted_keys(self, directory: Path, key_bytes: int, *, read_only: bool = False) -> SortedKeys:
        """The sorted keys in `directory`, which is made if it is not there. RocksDB does its own I/O there.

        Raises `RequestError` where RocksDB is not installed, `DirectoryLockedError` where others have it open
        (but for `read_only`), `CorruptionError` where its files are damaged.
        """
        ...


def read_file(disk: Disk, path: Path) -> bytes:
    """The whole content of a file."""
    with closing(disk.open(path)) as file:
        return file.read(0, file.size())


def write_parts(file: DiskFile, parts: Iterable[Bytes]) -> int:
    """Write the parts one behind the other from the start of a file; how many bytes that are."""
    end = 0
    for part in parts:
        file.write(end, part)
        end += len(part)
    return end


def write_and_rename(disk: Disk, temporary: Path, path: Path, parts: Iterable[Bytes], *, sync: bool) -> None:
    """Put a file there whole: written under another name first. With `sync` it survives a power cut."""
    with closing(disk.open(temporary, create=True)) as file:
        file.truncate(0)
        write_parts(file, parts)
        if sync:
            file.sync()
    disk.rename(temporary, path)
    if sync:
        disk.sync_dir(path.parent)


class _translated:
    """Translates an `OSError` into the error that says who must act."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if error is None or not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"{self._path}: no space left on the disk; free space on it") from error
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise StorageError(f"{self._path} is, or lies below, a file; name a directory") from error
        raise DiskError(
            f"{self._path}: {error.strerror or error}; check the disk and its permissions"
        ) from error


class _RealFile:
    def __init__(self, path: Path, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _translated(path):
            self._fd = os.open(path, flags, 0o644)
        self.path = path
        self._writable_map: mmap.mmap | None = None

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        with _translated(self.path):
            data = os.pread(self._fd, length, offset)
            if len(data) == length or not data:
                return data
            parts = [data]
            got = len(data)
            while got < length and (more := os.pread(self._fd, length - got, offset + got)):
                parts.append(more)
                got += len(more)
            return b"".join(parts)

    def write(self, offset: int, data: Bytes) -> None:
        with _translated(self.path):
            written = os.pwrite(self._fd, data, offset)
            if written == len(data):
                return
            offset += written
            view = memoryview(data).cast("B")[written:]
            while len(view):
                written = os.pwrite(self._fd, view, offset)
                view = view[written:]
                offset += written

    def scatter(self, row_indexes: I64, rows: Rows) -> None:
        size = self.size()
        if self._writable_map is None or len(self._writable_map) != size:
            self._writable_map = mmap.mmap(self._fd, size)
        whole = size // rows.itemsize
        table: Rows = np.frombuffer(self._writable_map, rows.dtype, whole)
        table[row_indexes] = rows

    def map(self, length: int) -> ByteArray:
        if length == 0:
            return np.empty(0, np.uint8)
        with _translated(self.path):
            return np.frombuffer(mmap.mmap(self._fd, length, prot=mmap.PROT_READ), np.uint8)

    def preallocate(self, length: int) -> None:
        with _translated(self.path):
            os.posix_fallocate(self._fd, 0, length)

    def truncate(self, length: int) -> None:
        with _translated(self.path):
            os.ftruncate(self._fd, length)

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise SyncFailedError(
                f"{self.path}: sync failed ({error.strerror}); check the disk, then start again"
            ) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._writable_map = None


class _FileLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_file(fd: int, path: Path, remedy: str) -> LockHandle:
    """Lock an open lock file; `DirectoryLockedError` names who holds it, and the remedy."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(fd)
        raise DirectoryLockedError(f"{path.parent} is in use by {holder}; {remedy}") from None
    return _FileLock(fd)


class RealDisk:
    """The machine's file system."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        return _RealFile(path, create)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, directory: Path) -> list[str]:
        try:
            with _translated(directory):
                return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_dir(self, directory: Path) -> None:
        with _translated(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        with _translated(target):
            os.replace(source, target)

    def remove(self, path: Path) -> None:
        with _translated(path):
            path.unlink(missing_ok=True)

    def remove_tree(self, directory: Path) -> None:
        if directory.exists():
            with _translated(directory):
                shutil.rmtree(directory)

    def sync_dir(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailedError(f"{directory}: sync failed ({error.strerror}); check the disk") from error
        finally:
            os.close(fd)

    def allocated_bytes(self, path: Path) -> int:
        if not path.is_dir():
            return path.stat().st_blocks * 512 if path.exists() else 0
        total = 0
        for folder, _, names in os.walk(path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue  # a file may go while we walk
        return total

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def total_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).total

    def place_of(self, path: Path) -> Place | None:
        try:
            found = path.stat()
        except OSError:  # also a file system that is there and answers no more
            return None
        return found.st_dev, found.st_ino

    def lock(self, path: Path, note: str) -> LockHandle:
        with _translated(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        held = lock_file(fd, path, "stop it first or choose another directory")
        with suppress(DiskFullError), _translated(path):  # the lock holds without the note
            os.ftruncate(fd, 0)
            os.pwrite(fd, note.encode(), 0)
        return held

    def sorted_keys(self, directory: Path, key_bytes: int, *, read_only: bool = False) -> SortedKeys:
        return RocksKeys(directory, key_bytes, read_only=read_only)
