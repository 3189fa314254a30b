"""A set of fixed-width keys in order, with one note beside them, in a directory of its own: RocksDB.

Owns every call into `rocksdict`. What rocksdict gives is one Python call per key; here keys go in and come
out as NumPy rows, in slices so short that no other thread waits long for the interpreter (rocksdict holds
it while it writes and while it steps through keys, and lets it go while it syncs).
Leaves to others: what the keys mean.

Invariants:
- `write` sets keys and note so that a crash at any point leaves the old note or the new one, the new one
  only with all keys before it; it returns when both survive a power cut;
- a scan that meets damaged blocks raises `CorruptionError`; it never just ends early.
"""

from __future__ import annotations

import importlib.util
import logging
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tidemill.core.errors import (
    CorruptionError,
    DirectoryLockedError,
    DiskError,
    DiskFullError,
    RequestError,
    SyncFailedError,
)
from tidemill.core.limits import MIB
from tidemill.log.arrays import Rows

if TYPE_CHECKING:
    from rocksdict import Options, Rdict, ReadOptions

logger = logging.getLogger(__name__)

KeyRows = Rows

# How many keys pass in one call: a few milliseconds at most.
_SLICE_KEYS = 4_096
# One buffer fills while another is written out; more would only cost memory.
_BUFFER_BYTES = 32 * MIB
_BUFFERS_MAX = 2
# Behind all keys: none may begin with this byte.
_NOTE_KEY = b"\xffnote"
# The records of RocksDB's own logs.
_BLOCK_BYTES = 32 * 1024
_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_LAST_KIND = 4  # zero, whole, first, middle, last; above it are those of files that are used again


class SortedKeys(Protocol):
    """Keys of one width, in byte order; none begins with 0xff. One user at a time."""

    def note(self) -> bytes | None:
        """The note as it was last written; None in a new directory."""
        ...

    def scan(self, first: bytes, end: bytes, count_max: int) -> KeyRows:
        """The keys in [first, end), in order, `count_max` of them at most, as rows of plain bytes."""
        ...

    def write(self, keys: KeyRows, note: bytes) -> None:
        """Add keys, best in order, and set the note; durable on return. Blocks on a sync."""
        ...

    def drop(self, first: bytes, end: bytes) -> None:
        """Remove the keys in [first, end). A power cut may bring them back."""
        ...

    def close(self) -> None: ...


def require_rocksdict() -> None:
    """Raise `RequestError` where RocksDB cannot be used."""
    if importlib.util.find_spec("rocksdict") is None:
        raise RequestError(
            "the timer store rocksdb needs the package rocksdict; install tidemill[rocksdb], "
            "or choose --timer-store wheel"
        )


class RocksKeys:
    """Sorted keys in RocksDB. With `read_only` others may have the directory open, and nothing changes."""

    def __init__(self, directory: Path, key_bytes: int, *, read_only: bool = False) -> None:
        require_rocksdict()
        from rocksdict import AccessType, Rdict

        self._directory = directory
        self._key_bytes = key_bytes
        _require_readable(directory)
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        with self._translated():
            self._db: Rdict | None = Rdict(str(directory), _options(), access_type=access)

    def note(self) -> bytes | None:
        with self._translated():
            found = self._open_db.get(_NOTE_KEY)
        return found if isinstance(found, bytes) else None

    def scan(self, first: bytes, end: bytes, count_max: int) -> KeyRows:
        parts: list[bytes] = []
        left = count_max
        with self._translated():
            keys = self._open_db.keys(from_key=first, read_opt=_reading_below(end))
            while left and (part := b"".join(islice(keys, min(left, _SLICE_KEYS)))):  # type: ignore[arg-type]
                parts.append(part)
                left -= len(part) // self._key_bytes
        data = b"".join(parts)
        if len(data) % self._key_bytes:
            raise CorruptionError(f"{self._directory} has keys of another width; delete the timer directory")
        if left:
            self._require_end(data[-self._key_bytes :] or first, end)
        return np.frombuffer(data, np.dtype((np.void, self._key_bytes)))

    def write(self, keys: KeyRows, note: bytes) -> None:
        assert keys.dtype.itemsize == self._key_bytes
        rows = keys.view(np.dtype((np.void, self._key_bytes)))
        # The note goes with the last slice, in one batch with it.
        starts = range(0, max(1, len(rows)), _SLICE_KEYS)
        with self._translated():
            for start in starts:
                self._put(rows[start : start + _SLICE_KEYS], note if start == starts[-1] else None)
            self._sync()

    def drop(self, first: bytes, end: bytes) -> None:
        with self._translated():
            self._open_db.delete_range(first, end)

    def close(self) -> None:
        if self._db is None:
            return
        db, self._db = self._db, None  # it is closed even if that fails, and must not be closed again
        try:
            with self._translated():
                db.close()
        except DiskFullError:
            return  # it could not tidy up; what was written is in RocksDB's own log, and synced
        except CorruptionError as error:
            # Nothing is lost by closing. The next one to read these files meets the damage.
            logger.warning("closed although its files are damaged: %s", error)

    @property
    def _open_db(self) -> Rdict:
        assert self._db is not None, "closed"
        return self._db

    def _put(self, rows: KeyRows, note: bytes | None) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        deque(map(batch.put, rows.tolist(), repeat(b"")), maxlen=0)
        if note is not None:
            batch.put(_NOTE_KEY, note)
        self._open_db.write(batch)

    def _sync(self) -> None:
        self._open_db.flush_wal(True)

    def _require_end(self, last: bytes, end: bytes) -> None:
        """rocksdict's iterators end in silence at a damaged block; only this one says why it stopped."""
        with self._translated():
            has_more = self._has_key_behind(last, end)
        if has_more:
            raise CorruptionError(f"{self._directory} ends a scan early; delete the timer directory")

    def _has_key_behind(self, last: bytes, end: bytes) -> bool:
        cursor = self._open_db.iter(_reading_below(end))
        try:
            cursor.seek(last)
            if cursor.valid() and cursor.key() == last:
                cursor.next()
            cursor.status()
            return cursor.valid()
        finally:
            del cursor  # else the error would hold it, and it the files, as long as a caller has the error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate RocksDB's error into the one that says who must act."""
        try:
            yield
        except Exception as error:
            # rocksdict knows no kinds of errors but this one, and says in words what happened.
            if type(error) is not Exception:
                raise
            raise self._error_of(str(error)) from error

    def _error_of(self, message: str) -> Exception:
        where = f"{self._directory}: {message}"
        if "lock hold by" in message or "While lock file" in message:
            return DirectoryLockedError(f"{where}; stop the process that has it open")
        if "No space left" in message or "Disk quota exceeded" in message:
            return DiskFullError("no space left on the disk; free space on that disk")
        if "While fdatasync" in message or "While fsync" in message:
            return SyncFailedError(f"{where}; check the disk, then start again")
        # Not found: what a damaged file of options names. A missing file is "No such file".
        if message.startswith(("Corruption", "Invalid argument", "NotFound")) or "No such file" in message:
            return CorruptionError(f"{where}; delete the timer directory to rebuild it")
        return DiskError(f"{where}; check the disk and its permissions")


def _options() -> Options:
    from rocksdict import DBCompressionType, Options

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.set_max_write_buffer_number(_BUFFERS_MAX)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    # RocksDB's log for people: two small files, and no statistics.
    options.set_max_log_file_size(1 * MIB)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    return options


def _reading_below(end: bytes) -> ReadOptions:
    from rocksdict import ReadOptions

    reading = ReadOptions()
    reading.set_iterate_upper_bound(end)
    return reading


def _require_readable(directory: Path) -> None:
    """`CorruptionError` if RocksDB might not come to the end of one of its logs in this directory.

    RocksDB verifies a record before it uses it, but its reader can go round for ever on a damaged one whose
    kind says that the file was used before. Ours never are, so such a kind is damage, and so is a record that
    crosses the end of its block. What RocksDB reports by itself is left to it.
    """
    if not directory.is_dir():
        return
    for path in sorted([*directory.glob("MANIFEST-*"), *directory.glob("*.log")]):
        at = _first_wrong_record(path.read_bytes())
        if at is not None:
            raise CorruptionError(
                f"{path}: the record at byte {at} is damaged; delete the timer directory to rebuild it"
            )


def _first_wrong_record(data: bytes) -> int | None:
    at = 0
    while True:
        left_in_block = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left_in_block < _HEAD.size:  # too short for a head: filled with zeros
            at += left_in_block
            continue
        if at + _HEAD.size > len(data):
            return None
        checksum, length, kind = _HEAD.unpack_from(data, at)
        if kind > _LAST_KIND or _HEAD.size + length > left_in_block:
            return at
        if not checksum and not length and not kind:  # set aside and not written yet
            return None
        at += _HEAD.size + length
