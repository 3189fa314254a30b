"""The find index: from the hash of (topic, id) or (topic, key) to the messages that may have it.

Owns pairs (hash, ref): the newest in memory (`find_memory.py`), the others in files. Past `memory_pairs_max`
the memory is written as one immutable file `<first offset>-<end offset>.run` that says which part of the log
it reflects. Files are merged in pairs of similar size up to a cap. Hits are candidates: the caller checks
them against the log.

Invariant: files cover the log without overlap; a pair at or above the last file's offset is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.log.arrays import I64, U64
from tidemill.log.disk import Disk
from tidemill.store.find_format import RUN_HEADER_BYTES, RunHeader, decode_run_header, encode_run_header
from tidemill.store.find_memory import FindMemory
from tidemill.store.find_runs import NO_HITS, Hits, Pairs, Run, joined, merged

# A checkpoint writes the memory out once an eighth of it is used.
_WRITTEN_FROM = 8


@dataclass(frozen=True, slots=True)
class _File:
    """A written run, and which part of the log it reflects."""

    run: Run
    first_offset: int
    end_offset: int
    path: Path


@dataclass(frozen=True, slots=True)
class _Flush:
    """A memory that is being written as one file."""

    memory: FindMemory
    first_offset: int
    end_offset: int


class FindIndex:
    """Refs by hash. One writer; lookups under the same lock."""

    def __init__(
        self, disk: Disk, directory: Path, *, memory_pairs_max: int = 1 << 18, file_pairs_max: int = 1 << 22
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._memory_pairs_max = memory_pairs_max
        self._file_pairs_max = file_pairs_max
        self._memory = FindMemory(memory_pairs_max)
        self._flushing: _Flush | None = None
        self.covers = 0  # log offset below which every pair is in a file or being written to one
        self._files: list[_File] = []
        disk.make_dir(directory)

    # -- opening ----------------------------------------------------------------------------------

    def open(self, head: int) -> None:
        """Take the files that reflect the log from `head` on without a gap; sets `covers`."""
        files = []
        for name in self._disk.names(self._directory):
            found = self._read(self._directory / name) if name.endswith(".run") else None
            if found is None:
                self._disk.remove(self._directory / name)
            else:
                files.append(found)
        covered: int | None = None
        for file in sorted(files, key=lambda f: (f.first_offset, -f.end_offset)):
            fits = file.first_offset <= head if covered is None else file.first_offset == covered
            if fits and file.end_offset > head:
                self._files.append(file)
                covered = file.end_offset
            else:
                self._disk.remove(file.path)
        self.covers = head if covered is None else covered

    def _read(self, path: Path) -> _File | None:
        file = self._disk.open(path)
        try:
            size = file.size()
            header = decode_run_header(file.read(0, RUN_HEADER_BYTES), size)
            if header is None:
                return None
            pairs: U64 = file.map(size)[RUN_HEADER_BYTES:].view("<u8")
            run = Run((pairs[: header.count], pairs[header.count :]))
            return _File(run, header.first_offset, header.end_offset, path)
        finally:
            file.close()

    # -- writing ----------------------------------------------------------------------------------

    def add(self, hashes: U64, refs: U64) -> None:
        self._memory.add(hashes, refs)

    @property
    def memory_is_full(self) -> bool:
        return len(self._memory) >= self._memory_pairs_max

    @property
    def is_worth_writing(self) -> bool:
        """What is in memory must be read from the log again when the store opens: not too much of that."""
        return len(self._memory) >= self._memory_pairs_max // _WRITTEN_FROM

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

    def write_flushing(self) -> _File:
        """Write what was set aside; needs no lock."""
        flush = self._flushing
        assert flush is not None
        return self._write(merged(flush.memory.runs()), flush.first_offset, flush.end_offset)

    def end_flush(self, written: _File) -> None:
        self._files.append(written)
        self._flushing = None

    def mergeable(self) -> tuple[_File, _File] | None:
        """The two newest files, where they are of similar size and fit into one."""
        if len(self._files) < 2:
            return None
        older, newer = self._files[-2:]
        counts = len(older.run), len(newer.run)
        return (older, newer) if counts[0] < 2 * counts[1] and sum(counts) <= self._file_pairs_max else None

    def write_merged(self, pair: tuple[_File, _File]) -> _File:
        """Write the merge of two neighbours; needs no lock."""
        older, newer = pair
        return self._write(merged([older.run, newer.run]), older.first_offset, newer.end_offset)

    def replace(self, pair: tuple[_File, _File], merged: _File) -> None:
        """Put the merge in the place of the two files it was made from; `remove` those afterwards."""
        self._files[-2:] = [merged]

    def remove(self, pair: tuple[_File, _File]) -> None:
        """Remove two files that were replaced; needs no lock."""
        for file in pair:
            self._disk.remove(file.path)

    def _write(self, pairs: Pairs, first_offset: int, end_offset: int) -> _File:
        path = self._directory / f"{first_offset:020d}-{end_offset:020d}.run"
        temporary = path.with_suffix(".tmp")
        hashes, refs = pairs
        file = self._disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write(0, encode_run_header(RunHeader(len(refs), first_offset, end_offset)))
            file.write(RUN_HEADER_BYTES, np.ascontiguousarray(hashes).view(np.uint8).data)
            file.write(RUN_HEADER_BYTES + 8 * len(refs), np.ascontiguousarray(refs).view(np.uint8).data)
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)
        self._disk.sync_dir(self._directory)
        written = self._read(path)
        assert written is not None
        return written

    def cut_head(self, head: int) -> None:
        """Drop files that reflect only log below `head`."""
        kept = []
        for file in self._files:
            if file.end_offset <= head:
                self._disk.remove(file.path)
            else:
                kept.append(file)
        self._files = kept

    # -- looking up -------------------------------------------------------------------------------

    def find(self, hashed: int) -> U64:
        """Every ref with this hash, ascending."""
        return self.find_many(np.array([hashed], np.uint64))[1]

    def has_any(self, hashes: U64) -> bool:
        """Whether one of them is there: what a send wants to know, whose ids are nearly always new."""
        memories = [self._memory] if self._flushing is None else [self._memory, self._flushing.memory]
        return any(memory.has_any(hashes) for memory in memories) or any(
            file.run.has_any(hashes) for file in self._files
        )

    def find_many(self, hashes: U64) -> Hits:
        """For each hit: the index into `hashes` and the ref; hits of one hash come in ascending order."""
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

    def close(self) -> None:
        self._files = []
