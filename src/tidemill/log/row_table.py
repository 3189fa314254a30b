"""A growing table of fixed-width rows, addressed by index, in chunk files.

Owns the chunk files `<first row index, 20 digits>` of one directory. Rows are appended (or written
again, by a replay) and read through read-only maps; whole chunks are dropped from the head.
Knows nothing of what a row means. Never syncs unless asked to. When the disk is full it asks its owner to
free space, because by then the log already holds what the rows say.

Rows of a file that is missing or too short read as zeros: the owner's checks detect that they are not rows.

Invariant: row `i` lives in chunk `i // chunk_rows` at byte `(i % chunk_rows) * itemsize`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.core.errors import DiskFullError
from tidemill.log.arrays import I64, Rows, joined, picked, plain
from tidemill.log.disk import Bytes, Disk, DiskFile

_NAME = re.compile(r"\d{20}")
# So many are copied to be written: that is quicker than to look at them as bytes.
_COPIED_ROWS_MAX = 1024

MakeRoom = Callable[[], bool]  # frees some disk space; False when there is none left to free


@dataclass(frozen=True, slots=True)
class TableSync:
    """What of a table was not safe at one moment. `run` needs no lock: the table may be used meanwhile."""

    disk: Disk
    paths: list[Path]
    directory: Path | None  # where names are new
    dirty_chunks: frozenset[int]

    def run(self) -> None:
        """Make it safe, through files of our own: the table may close its own meanwhile, or drop them."""
        for path in self.paths:
            with suppress(FileNotFoundError), closing(self.disk.open(path)) as file:  # dropped since
                file.sync()
        if self.directory is not None:
            with suppress(FileNotFoundError):
                self.disk.sync_dir(self.directory)


class RowTable:
    """Fixed-width rows by index. One writer; readers may share it under the owner's lock."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        dtype: np.dtype[Any],
        chunk_rows: int,
        make_room: MakeRoom,
        *,
        name_step: int = 0,
    ) -> None:
        """`name_step` is how far the names of two neighbouring files are apart: `chunk_rows` if not given."""
        self._disk = disk
        self._directory = directory
        self._dtype = dtype
        self._chunk_rows = chunk_rows
        self._make_room = make_room
        self._name_step = name_step or chunk_rows
        self._files: dict[int, DiskFile] = {}
        self._maps: dict[int, Rows] = {}
        self._dirty: set[int] = set()
        disk.make_dir(directory)
        self._chunks = {
            int(name) // self._name_step
            for name in disk.names(directory)
            if _NAME.fullmatch(name) and int(name) % self._name_step == 0
        }
        # A process that was killed may have made these names without making them safe.
        self._name_is_new = bool(self._chunks)

    def write(self, first_index: int, rows: Rows) -> None:
        """Put `rows` at `first_index` and after; chunk files are made as needed."""
        done = 0
        while done < len(rows):
            chunk, row = divmod(first_index + done, self._chunk_rows)
            part = rows[done : done + self._chunk_rows - row]
            is_small = len(part) <= _COPIED_ROWS_MAX
            data: Bytes = part.tobytes() if is_small else np.ascontiguousarray(part).view(np.uint8).data
            self._write_with_room(chunk, row * self._dtype.itemsize, data)
            self._dirty.add(chunk)
            done += len(part)

    def _write_with_room(self, chunk: int, position: int, data: Bytes) -> None:
        while True:
            try:
                self._file(chunk, create=True).write(position, data)
                return
            except DiskFullError:
                if not self._make_room():
                    raise

    def read(self, first_index: int, end_index: int) -> Rows:
        """Rows `[first_index, end_index)`; a view where they lie in one chunk."""
        if first_index >= end_index:
            return np.empty(0, self._dtype)
        chunk, row = divmod(first_index, self._chunk_rows)
        if end_index <= (chunk + 1) * self._chunk_rows:
            count = end_index - first_index
            return self._rows(chunk, row + count)[row : row + count]
        parts = []
        while first_index < end_index:
            stop = min(end_index, (first_index // self._chunk_rows + 1) * self._chunk_rows)
            parts.append(self.read(first_index, stop))
            first_index = stop
        return joined(parts)

    def take(self, indexes: I64) -> Rows:
        """A copy of the rows at `indexes`, in that order."""
        if not len(indexes):
            return np.empty(0, self._dtype)
        if len(indexes) == 1:
            index = int(indexes[0])
            return self.read(index, index + 1).copy()
        out = np.empty(len(indexes), self._dtype)
        for chunk, chosen, within in self._by_chunk(indexes):
            rows = picked(self._rows(chunk, int(within.max()) + 1), within)
            if isinstance(chosen, slice):
                return rows
            plain(out)[chosen] = plain(rows)
        return out

    def _by_chunk(self, indexes: I64) -> list[tuple[int, slice | I64, I64]]:
        """Each chunk that is touched: its number, which of `indexes` are in it, and their rows there."""
        if not len(indexes):
            return []
        chunk_of = indexes // self._chunk_rows
        low, high = int(chunk_of.min()), int(chunk_of.max())
        if low == high:
            return [(low, slice(None), indexes - low * self._chunk_rows)]
        groups: list[tuple[int, slice | I64, I64]] = []
        for chunk in np.unique(chunk_of).tolist():
            chosen = np.flatnonzero(chunk_of == chunk)
            groups.append((chunk, chosen, indexes[chosen] - chunk * self._chunk_rows))
        return groups

    def cut_head(self, below_index: int) -> None:
        """Drop chunks that lie wholly below `below_index`."""
        for chunk in [c for c in self._chunks if (c + 1) * self._chunk_rows <= below_index]:
            self._drop(chunk)

    def cut_tail(self, end_index: int) -> None:
        """Forget rows at `end_index` and after."""
        for chunk in [c for c in self._chunks if c * self._chunk_rows >= end_index]:
            self._drop(chunk)
        chunk, row = divmod(end_index, self._chunk_rows)
        if chunk in self._chunks:
            self._maps.pop(chunk, None)
            file = self._file(chunk, create=False)
            if file.size() > row * self._dtype.itemsize:
                file.truncate(row * self._dtype.itemsize)

    def sync(self) -> None:
        """Make every row written so far survive a power cut."""
        self.begin_sync().run()

    def begin_sync(self) -> TableSync:
        """Take note of what is not safe yet, and count it as safe: the caller runs what is returned."""
        paths = [self._path(chunk) for chunk in sorted(self._dirty & self._chunks)]
        begun = TableSync(
            self._disk, paths, self._directory if self._name_is_new else None, self.dirty_chunks
        )
        self._dirty, self._name_is_new = set(), False
        return begun

    def undo_sync(self, begun: TableSync) -> None:
        """A sync that was begun did not succeed: what it was to make safe is not."""
        self.take_over(begun.dirty_chunks)
        self._name_is_new = self._name_is_new or begun.directory is not None

    @property
    def dirty_chunks(self) -> frozenset[int]:
        """Chunks with rows that are not safe yet; who closes the table and opens it again hands them on."""
        return frozenset(self._dirty)

    def take_over(self, dirty_chunks: frozenset[int]) -> None:
        """Count these chunks as not safe: an earlier opening of this table wrote them."""
        self._dirty |= dirty_chunks & self._chunks

    def close(self) -> None:
        self._maps.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def path_of(self, index: int) -> Path:
        """The file that holds a row."""
        return self._path(index // self._chunk_rows)

    def _path(self, chunk: int) -> Path:
        return self._directory / f"{chunk * self._name_step:020d}"

    def _file(self, chunk: int, *, create: bool) -> DiskFile:
        file = self._files.get(chunk)
        if file is None:
            if create and chunk not in self._chunks:
                self._chunks.add(chunk)
                self._name_is_new = True
            file = self._files[chunk] = self._disk.open(self._path(chunk), create=create)
        return file

    def _rows(self, chunk: int, count: int) -> Rows:
        """At least the first `count` rows of a chunk: a view where the file has them."""
        rows = self._maps.get(chunk)
        if rows is None or len(rows) < count:
            rows = self._maps[chunk] = self._map(chunk)
        return rows if len(rows) >= count else self._made_longer(rows, chunk, count)

    def _made_longer(self, rows: Rows, chunk: int, count: int) -> Rows:
        """`count` rows where the file has only `rows`, or is missing: a copy that ends in zeros."""
        longer = np.zeros(count, self._dtype)
        longer[: len(rows)] = rows
        return longer

    def _map(self, chunk: int) -> Rows:
        try:
            file = self._file(chunk, create=False)
        except FileNotFoundError:
            return np.empty(0, self._dtype)
        whole = file.size() // self._dtype.itemsize
        return file.map(whole * self._dtype.itemsize).view(self._dtype)

    def _drop(self, chunk: int) -> None:
        self._maps.pop(chunk, None)
        file = self._files.pop(chunk, None)
        if file is not None:
            file.close()
        self._dirty.discard(chunk)
        self._chunks.discard(chunk)
        self._disk.remove(self._path(chunk))
