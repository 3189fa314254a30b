"""Upkeep of the find index beside the writer: files written and merged, verified, and derived again.

Owns the order of these. Reading, deriving and writing go on without the writer lock; under it, only lists are
changed. Each step is bounded, and every step but a lookup is for one thread (the store's upkeep lock).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tidemill.core.limits import MIB
from tidemill.log.segments import SegmentedLog
from tidemill.store.find.find_files import RunFile
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.find_pairs import pairs_in
from tidemill.store.formats.find_format import RunSum

# So much of the files is verified in one step: with a step each second, all of it at 10 M pending in five
# minutes, for a ten-thousandth of a core.
SCRUB_BYTES = MIB
# So much of the log is read in one step to derive what was lost.
_DERIVE_BYTES = 256 * MIB


class FindUpkeep:
    """Keeps the files of the find index few and right."""

    def __init__(
        self,
        find: FindIndex,
        log: SegmentedLog,
        lock: AbstractContextManager[object],
        finish_all: Callable[[], object],
    ) -> None:
        self._find = find
        self._log = log
        self._lock = lock  # the writer's
        self._finish_all = finish_all
        self._scrubbed: RunFile | None = None  # the file that is being verified, and what of it has been
        self._sum: RunSum | None = None

    # -- writing ----------------------------------------------------------------------------------

    def save(self, *, is_needed: bool = False) -> None:
        """Write the memory when it is worth a file, or needed; the files only ever cover what is safe."""
        find = self._find
        if find.is_worth_writing or is_needed:
            with self._lock:
                find.begin_flush(self._log.written_end)
            self._finish_all()
            written = find.write_flushing()
            with self._lock:
                find.end_flush(written)
        while (pair := find.mergeable()) is not None:
            merged = find.write_merged(pair)
            if not isinstance(merged, RunFile):
                self._lose(merged)
                return
            with self._lock:
                find.replace(pair, merged)
            find.remove(pair)

    # -- damage -----------------------------------------------------------------------------------

    def step(self, scrub_bytes: int = SCRUB_BYTES) -> bool:
        """Derive some of what is lost, or verify a part of a file; True where more is lost."""
        if not self._find.lost:
            self._scrub(scrub_bytes)
        if self._find.lost:
            self._derive_some()
        return bool(self._find.lost)

    def derive_lost(self) -> None:
        """Derive all that is lost."""
        while self._find.lost:
            self._derive_some()

    def _scrub(self, bytes_max: int) -> None:
        files = self._find.files
        if self._sum is None or self._scrubbed not in files:
            self._begin_next(files)
        if self._scrubbed is None or self._sum is None:
            return
        self._sum.add(bytes_max)
        if self._sum.is_complete:
            file, is_right, self._sum = self._scrubbed, self._sum.is_right, None
            if not is_right:
                self._lose([file])

    def _begin_next(self, files: list[RunFile]) -> None:
        """Begin with the file behind the one that was looked at last; then with the first again."""
        last = -1 if self._scrubbed is None else self._scrubbed.first_offset
        later = [file for file in files if file.first_offset > last]
        self._scrubbed = next(iter(later or files), None)
        self._sum = RunSum(self._scrubbed.content) if self._scrubbed is not None else None

    def _lose(self, damaged: list[RunFile]) -> None:
        for file in damaged:
            with self._lock:
                self._find.lose(file)

    def _derive_some(self) -> None:
        """Derive the beginning of the first part that is lost."""
        find, lost = self._find, self._find.lost[0]
        alone = find.beside()
        end_offset = lost.end_offset
        for frame in self._log.intact_frames(lost.first_offset, lost.end_offset):
            for pairs in pairs_in(frame):
                alone.add(*pairs)
            is_much = frame.end - lost.first_offset >= _DERIVE_BYTES
            if is_much or alone.memory_count >= find.file_pairs_max:
                end_offset = min(frame.end, lost.end_offset)
                break
        written = find.regain(alone.drain(), lost.first_offset, end_offset)
        with self._lock:
            find.end_regain(written)
