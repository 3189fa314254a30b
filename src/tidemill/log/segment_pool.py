"""Preallocated files that wait to become the next segments of a log.

Owns the files `spare` and `next.<n>` of a log's directory. The *spare* is kept back for appends that must
not fail (releases, cancels); any other append is refused while it cannot be had. Files *set aside* make sure
that a call of several frames finds space for all of them before it writes the first.

Invariant: a file here holds nothing but zeros. That is why a taken file gets its new name durably before
anything is written into it: else a power cut could bring it back here with old frames inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tidemill.core.errors import DiskFullError
from tidemill.log.disk import Disk, DiskFile
from tidemill.log.row_table import MakeRoom

_SPARE = "spare"
_NEXT = "next"


class SegmentPool:
    """Where the files of new segments come from. For one thread at a time, as appending is."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, make_room: MakeRoom) -> None:
        self._disk = disk
        self._directory = directory
        self.segment_bytes = segment_bytes
        self._make_room = make_room
        self._made_count = 0
        self._set_aside: dict[Path, int] = {}  # files and their sizes
        self.is_short = False  # the last append that may be refused was, for lack of space
        self._has_spare = self._spare_is_whole()

    def forget_leftovers(self) -> None:
        """Remove what a process that ended had set aside. Only for a writer that is about to append."""
        for name in self._disk.names(self._directory):
            if name.startswith(_NEXT):
                self._disk.remove(self._directory / name)

    def _spare_is_whole(self) -> bool:
        path = self._directory / _SPARE
        if not self._disk.exists(path):
            return False
        with closing(self._disk.open(path)) as file:
            return file.size() >= self.segment_bytes

    def set_aside(self, sizes: Sequence[int], *, also_free_bytes: int = 0) -> None:
        """Have the spare and a file of each of these sizes, with `also_free_bytes` left on the disk beside.

        On `DiskFullError` nothing more is held than before.
        """
        if self._has_spare and not sizes and not also_free_bytes:
            self.is_short = False
            return
        made: list[Path] = []
        try:
            self._keep_spare()
            unused = sorted(self._set_aside.values())
            for size in sorted(sizes, reverse=True):
                if unused and unused[-1] >= size:
                    unused.pop()
                    continue
                made.append(self._preallocated(self._next_name(), size))
                self._set_aside[made[-1]] = size
            if also_free_bytes:
                self._require_free(also_free_bytes)
        except DiskFullError:
            self.is_short = True
            for path in made:
                del self._set_aside[path]
                self._disk.remove(path)
            raise
        self.is_short = False

    @property
    def missing_bytes(self) -> int:
        """What must be free for one more segment to be had, and the spare beside it."""
        spare_bytes = 0 if self._has_spare else self.segment_bytes
        return spare_bytes + (0 if self._fits_set_aside() else self.segment_bytes)

    def _fits_set_aside(self) -> bool:
        return any(held >= self.segment_bytes for held in list(self._set_aside.values()))

    def look_again(self) -> None:
        """After a refusal: check whether there is space for one more segment now."""
        if self.is_short:
            try:
                self.set_aside([self.segment_bytes])
            except DiskFullError:
                return

    def take(self, path: Path, size: int, *, is_reserved: bool) -> DiskFile:
        """A new file under `path`, its name safe, with at least `size` bytes of disk behind it."""
        made = self._fitting(size)
        while made is None:
            try:
                made = self._preallocated(self._next_name(), size)
            except DiskFullError:
                if is_reserved and self._has_spare and size <= self.segment_bytes:
                    self._has_spare = False
                    made = self._directory / _SPARE
                elif not (is_reserved and self._make_room()):
                    self.is_short = True
                    raise
        self._disk.rename(made, path)
        self._disk.sync_dir(self._directory)
        return self._disk.open(path)

    def _fitting(self, size: int) -> Path | None:
        """The smallest file set aside that is large enough."""
        fitting = [(held, path) for path, held in self._set_aside.items() if held >= size]
        if not fitting:
            return None
        _, path = min(fitting)
        del self._set_aside[path]
        return path

    def _keep_spare(self) -> None:
        if not self._has_spare:
            self._preallocated(_SPARE, self.segment_bytes)
            self._has_spare = True

    def _next_name(self) -> str:
        self._made_count += 1
        return f"{_NEXT}.{self._made_count}"

    def _preallocated(self, name: str, size: int) -> Path:
        path = self._directory / name
        with closing(self._disk.open(path, create=True)) as file:
            try:
                file.preallocate(size)
            except DiskFullError as error:
                self._disk.remove(path)
                raise self._no_room(size) from error
        return path

    def _require_free(self, needed_bytes: int) -> None:
        if self._disk.free_bytes(self._directory) < needed_bytes:
            raise self._no_room(needed_bytes)

    def _no_room(self, needed_bytes: int) -> DiskFullError:
        free_bytes = max(0, self._disk.free_bytes(self._directory))
        return DiskFullError(
            f"the disk is full: {needed_bytes:,} more bytes are needed, {free_bytes:,} are free; "
            "free space on that disk"
        )
