"""The find index: from the hash of (topic, id) or (topic, key) to the messages that may have it.

Owns pairs (hash, ref): the newest in memory (`find_memory.py`), the others in files (`find_files.py`). Past
`memory_pairs_max` the memory is written as one immutable file that says which part of the log it reflects.
Files are merged in pairs of similar size up to a cap. Hits are candidates: the caller checks them against the
log.

A file is verified when it is opened, when it is merged, and periodically (`find_upkeep.py`). One that fails
is dropped, and its part of the log is *lost* until the pairs are derived again. Lookups are refused
meanwhile: "not there" might be untrue.

Invariant: files and lost parts cover the log without overlap up to `covers`; every pair above is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.core.errors import BusyError
from tidemill.log.arrays import I64, U64
from tidemill.log.disk import Disk
from tidemill.store.damage import Derived, Repairs
from tidemill.store.find.find_files import SUFFIX, RunFile, open_run, path_of, write_run
from tidemill.store.find.find_memory import FindMemory
from tidemill.store.find.find_runs import NO_HITS, Hits, Pairs, in_order, joined, merged
from tidemill.store.formats.find_format import run_checksum

# A checkpoint writes the memory out once an eighth of it is used.
_WRITTEN_FROM = 8


@dataclass(frozen=True, slots=True)
class Lost:
    """A part of the log whose file is gone."""

    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class _Flush:
    """A memory that is being written as one file."""

    memory: FindMemory
    first_offset: int
    end_offset: int


class FindIndex:
    """Refs by hash. One writer; lookups under the same lock."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        repairs: Repairs,
        *,
        memory_pairs_max: int = 1 << 18,
        file_pairs_max: int = 1 << 22,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._repairs = repairs
        self._memory_pairs_max = memory_pairs_max
        self.file_pairs_max = file_pairs_max
        self._memory = FindMemory(memory_pairs_max)
        self._flushing: _Flush | None = None
        # Log offset below which every pair is in a file, is being written to one, or is lost.
        self.covers = 0
        self._files: list[RunFile] = []  # replaced, never changed
        self.lost: list[Lost] = []
        disk.make_dir(directory)

    def beside(self) -> FindIndex:
        """An empty index over no file, to gather pairs in."""
        return FindIndex(self._disk, self._directory, self._repairs, memory_pairs_max=self._memory_pairs_max)

    # -- opening ----------------------------------------------------------------------------------

    def open(self, head: int) -> None:
        """Take the files that reflect the log from `head` on; sets `covers`.

        What is missing between them is lost. Behind the last one the caller replays the log.
        """
        files, has_damage = [], False
        for name in self._disk.names(self._directory):
            found = open_run(self._disk, self._directory / name) if name.endswith(SUFFIX) else None
            if isinstance(found, RunFile):
                files.append(found)
                continue
            if found is not None and found.is_damaged:
                self._report(found.path)
                has_damage = True
            self._disk.remove(self._directory / name)
        self.covers = head
        for file in sorted(files, key=lambda f: (f.first_offset, -f.end_offset)):
            is_first = not self._files and not self.lost
            if file.end_offset <= self.covers or (file.first_offset < self.covers and not is_first):
                self._disk.remove(file.path)  # cut off, or merged into one that is there
                continue
            if file.first_offset > self.covers:
                self.lost = [*self.lost, Lost(self.covers, file.first_offset)]
                if not has_damage:  # a file is missing
                    self._report(path_of(self._directory, self.covers, file.first_offset))
            self._files = [*self._files, file]
            self.covers = file.end_offset

    def _report(self, path: Path) -> None:
        self._repairs.add(Derived.FIND, path, "this run of the find index", 1)

    # -- what is damaged --------------------------------------------------------------------------

    @property
    def files(self) -> list[RunFile]:
        return self._files

    def lose(self, file: RunFile) -> None:
        """Drop a file that is damaged: its part of the log is lost until it is derived again."""
        self._report(file.path)
        self._files = [other for other in self._files if other is not file]
        self.lost = sorted(
            [*self.lost, Lost(file.first_offset, file.end_offset)], key=lambda lost: lost.first_offset
        )
        self._disk.remove(file.path)

    def regain(self, pairs: Pairs, first_offset: int, end_offset: int) -> RunFile:
        """Write what was derived again of a lost part; needs no lock."""
        return write_run(self._disk, self._directory, in_order(*pairs), first_offset, end_offset)

    def end_regain(self, written: RunFile) -> None:
        """Put what was derived again in the place of what was lost; it begins where that begins."""
        lost = self.lost[0]
        assert lost.first_offset == written.first_offset
        left = [Lost(written.end_offset, lost.end_offset)] if written.end_offset < lost.end_offset else []
        self.lost = [*left, *self.lost[1:]]
        self._files = sorted([*self._files, written], key=lambda file: file.first_offset)

    # -- writing ----------------------------------------------------------------------------------

    def add(self, hashes: U64, refs: U64) -> None:
        self._memory.add(hashes, refs)

    @property
    def memory_count(self) -> int:
        """Pairs in memory."""
        return len(self._memory)

    @property
    def memory_is_full(self) -> bool:
        return len(self._memory) >= self._memory_pairs_max

    @property
    def is_worth_writing(self) -> bool:
        """What is in memory must be read from the log again when the store opens: not too much of that."""
        return len(self._memory) >= max(1, self._memory_pairs_max // _WRITTEN_FROM)

    def drain(self) -> Pairs:
        """Take all pairs out of memory, unsorted: for the checker, which looks at each once."""
        taken, self._memory = self._memory, FindMemory(self._memory_pairs_max)
        return joined([run.pairs for run in taken.runs()])

    def begin_flush(self, end_offset: int) -> None:
        """Set aside what is in memory, which makes the index complete up to `end_offset`, to be written."""
        if self._flushing is not None:
            return  # the disk was full the last time: that flush is finished first
        self._flushing = _Flush(self._memory, self.covers, end_offset)
        self._memory = FindMemory(self._memory_pairs_max)
        self.covers = end_offset

    def write_flushing(self) -> RunFile:
        """Write what was set aside; needs no lock."""
        flush = self._flushing
        assert flush is not None
        pairs = merged(flush.memory.runs())
        return write_run(self._disk, self._directory, pairs, flush.first_offset, flush.end_offset)

    def end_flush(self, written: RunFile) -> None:
        self._files = [*self._files, written]
        self._flushing = None

    def mergeable(self) -> tuple[RunFile, RunFile] | None:
        """The two newest files, where they are neighbours of similar size and fit into one."""
        if len(self._files) < 2:
            return None
        older, newer = self._files[-2:]
        counts = len(older.run), len(newer.run)
        fits = counts[0] < 2 * counts[1] and sum(counts) <= self.file_pairs_max
        return (older, newer) if fits and older.end_offset == newer.first_offset else None

    def write_merged(self, pair: tuple[RunFile, RunFile]) -> RunFile | list[RunFile]:
        """Write the merge of two neighbours, or say which of them are damaged; needs no lock."""
        older, newer = pair
        hashes, refs = joined([older.run.pairs, newer.run.pairs])
        # The copy is what is verified: what is wrong must not be given a right checksum.
        middle = len(older.run)
        parts = ((older, (hashes[:middle], refs[:middle])), (newer, (hashes[middle:], refs[middle:])))
        if damaged := [file for file, pairs in parts if run_checksum(file.header, pairs) != file.checksum]:
            return damaged
        pairs = in_order(hashes, refs)
        return write_run(self._disk, self._directory, pairs, older.first_offset, newer.end_offset)

    def replace(self, pair: tuple[RunFile, RunFile], merged: RunFile) -> None:
        """Put the merge in the place of the two files it was made from; `remove` those afterwards."""
        self._files = [*self._files[:-2], merged]

    def remove(self, pair: tuple[RunFile, RunFile]) -> None:
        """Remove two files that were replaced; needs no lock."""
        for file in pair:
            self._disk.remove(file.path)

    def cut_head(self, head: int) -> None:
        """Drop files that reflect only log below `head`."""
        for file in self._files:
            if file.end_offset <= head:
                self._disk.remove(file.path)
        self._files = [file for file in self._files if file.end_offset > head]
        self.lost = [
            Lost(max(lost.first_offset, head), lost.end_offset)
            for lost in self.lost
            if lost.end_offset > head
        ]

    # -- looking up -------------------------------------------------------------------------------

    def find(self, hashed: int) -> U64:
        """Every ref with this hash, ascending."""
        return self.find_many(np.array([hashed], np.uint64))[1]

    def has_any(self, hashes: U64) -> bool:
        """Whether one of them is there: what a send wants to know, whose ids are nearly always new."""
        self._require_all()
        memories = [self._memory] if self._flushing is None else [self._memory, self._flushing.memory]
        return any(memory.has_any(hashes) for memory in memories) or any(
            file.run.has_any(hashes) for file in self._files
        )

    def find_many(self, hashes: U64) -> Hits:
        """For each hit: the index into `hashes` and the ref; hits of one hash come in ascending order."""
        self._require_all()
        order = np.argsort(hashes)
        wanted = hashes[order]
        found = [file.run.hits(wanted) for file in self._files]
        if self._flushing is not None:
            found += self._flushing.memory.find(wanted)
        found += self._memory.find(wanted)
        found = [hits for hits in found if len(hits[1])]
        if not found:
            return NO_HITS
        at: I64 = order[np.concatenate([hits[0] for hits in found])]
        refs = np.concatenate([hits[1] for hits in found])
        ascending = np.lexsort((refs, at))
        return at[ascending], refs[ascending]

    def _require_all(self) -> None:
        if self.lost:
            raise BusyError(
                "a run of the find index was damaged and is being derived again from the commit log; "
                "retry in a few seconds"
            )

    def close(self) -> None:
        self._files = []
