"""The find index: from the hash of (topic, id) or (topic, key) to the messages that may have it.

Owns pairs (hash, ref) in sorted runs. The newest pairs are in memory: a small table and a few sorted runs
of doubling size. Past `memory_pairs_max` they are written as one immutable file `<first offset>-<end
offset>.run` that says which part of the log it reflects. Files are merged in pairs of similar size up to a
cap. A ref is a seq, or a place with the top bit set for a message that is not timed. Hits are candidates:
the caller checks them against the log.

Invariant: files cover the log without overlap; a pair at or above the last file's offset is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.log.arrays import I64, U64
from tidemill.log.disk import Disk
from tidemill.store.find_format import RUN_HEADER_BYTES, RunHeader, decode_run_header, encode_run_header

PLACE_BIT = np.uint64(1 << 63)
_RECENT_PAIRS_MAX = 1024
# From here on a batch is kept as it came and sorted only when somebody looks, or when it is written.
_UNSORTED_PAIRS_MIN = 1 << 14
# A checkpoint writes the memory out once an eighth of it is used.
_WRITTEN_FROM = 8


Pairs = tuple[U64, U64]  # hashes, refs
_NO_HITS = np.empty(0, np.int64)


@dataclass(slots=True)
class _Run:
    """Pairs, in order of their hashes or still to be put in order. `pairs` is replaced, never changed."""

    pairs: Pairs
    is_sorted: bool = True

    def __len__(self) -> int:
        return len(self.pairs[1])

    def in_order(self) -> Pairs:
        if not self.is_sorted:
            self.pairs, self.is_sorted = _sorted(*self.pairs), True
        return self.pairs


@dataclass(frozen=True, slots=True)
class _File:
    """A written run, and which part of the log it reflects."""

    run: _Run
    first_offset: int
    end_offset: int
    path: Path


@dataclass(frozen=True, slots=True)
class _Flush:
    """Runs that are being written as one file."""

    runs: list[_Run]
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
        self._recent: dict[int, list[int]] = {}
        self._recent_pairs = 0
        self._memory: list[_Run] = []
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
            run = _Run((pairs[: header.count], pairs[header.count :]))
            return _File(run, header.first_offset, header.end_offset, path)
        finally:
            file.close()

    # -- writing ----------------------------------------------------------------------------------

    def add(self, hashes: U64, refs: U64) -> None:
        if len(hashes) >= _UNSORTED_PAIRS_MIN:
            self._memory.append(_Run((hashes, refs), is_sorted=False))
            return
        if len(hashes) > _RECENT_PAIRS_MAX // 4:
            self._keep_run(_Run(_sorted(hashes, refs)))
            return
        for hashed, ref in zip(hashes.tolist(), refs.tolist(), strict=True):
            self._recent.setdefault(hashed, []).append(ref)
        self._recent_pairs += len(hashes)
        if self._recent_pairs > _RECENT_PAIRS_MAX:
            self._keep_run(_Run(_sorted(*self._recent_arrays())))
            self._recent, self._recent_pairs = {}, 0

    def _keep_run(self, run: _Run) -> None:
        """Keep a small run, merging it with its neighbour while that is not much larger."""
        self._memory.append(run)
        while len(self._memory) > 1 and len(self._memory[-2]) < min(
            _UNSORTED_PAIRS_MIN, 2 * len(self._memory[-1])
        ):
            newer, older = self._memory.pop(), self._memory.pop()
            self._memory.append(_Run(_merged([older, newer])))

    def _recent_arrays(self) -> tuple[U64, U64]:
        counts = [len(refs) for refs in self._recent.values()]
        hashes = np.repeat(np.array(list(self._recent), np.uint64), counts)
        return hashes, np.array([ref for refs in self._recent.values() for ref in refs], np.uint64)

    @property
    def memory_is_full(self) -> bool:
        return self._memory_pairs >= self._memory_pairs_max

    @property
    def is_worth_writing(self) -> bool:
        """What is in memory must be read from the log again when the store opens: not too much of that."""
        return self._memory_pairs >= self._memory_pairs_max // _WRITTEN_FROM

    @property
    def _memory_pairs(self) -> int:
        return self._recent_pairs + sum(map(len, self._memory))

    def drain(self) -> Pairs:
        """Take all pairs out of memory, unsorted: for the checker, which looks at each once."""
        runs = [*self._memory, _Run(self._recent_arrays())]
        self._memory, self._recent, self._recent_pairs = [], {}, 0
        return np.concatenate([run.pairs[0] for run in runs]), np.concatenate([run.pairs[1] for run in runs])

    def begin_flush(self, end_offset: int) -> None:
        """Set aside what is in memory, which makes the index complete up to `end_offset`, to be written."""
        if self._flushing is not None:
            return  # the disk was full the last time: that flush is finished first
        runs = [*self._memory, _Run(_sorted(*self._recent_arrays()))]
        self._flushing = _Flush(runs, self.covers, end_offset)
        self._memory, self._recent, self._recent_pairs = [], {}, 0
        self.covers = end_offset

    def write_flushing(self) -> _File:
        """Write what was set aside; needs no lock."""
        flush = self._flushing
        assert flush is not None
        return self._write(_merged(flush.runs), flush.first_offset, flush.end_offset)

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
        return self._write(_merged([older.run, newer.run]), older.first_offset, newer.end_offset)

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

    def find_many(self, hashes: U64) -> tuple[I64, U64]:
        """For each hit: the index into `hashes` and the ref; hits of one hash come in ascending order."""
        runs = [*(file.run for file in self._files), *self._memory]
        if self._flushing is not None:
            runs.extend(self._flushing.runs)
        found_at, found_refs = self._find_recent(hashes)
        if self._recent and len(hashes) > _RECENT_PAIRS_MAX // 4:
            runs.append(_Run(_sorted(*self._recent_arrays())))
        order = np.argsort(hashes)
        wanted = hashes[order]
        for run in runs:
            run_hashes, run_refs = run.in_order()
            low = run_hashes.searchsorted(wanted)
            # Most hashes are nowhere: one look at what stands there is cheaper than a second search.
            hit = (run_hashes.take(low, mode="clip") == wanted).nonzero()[0] if len(run_hashes) else _NO_HITS
            if len(hit):
                counts = run_hashes.searchsorted(wanted[hit], "right") - low[hit]
                position = np.repeat(low[hit], counts) + _ranks(counts)
                found_at.append(order[np.repeat(hit, counts)])
                found_refs.append(run_refs[position])
        if not found_at:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        at, refs = np.concatenate(found_at), np.concatenate(found_refs)
        ascending = np.lexsort((refs, at))
        return at[ascending], refs[ascending]

    def _find_recent(self, hashes: U64) -> tuple[list[I64], list[U64]]:
        """Hits in the table of recent pairs, for few hashes; for many it is searched as one more run."""
        found_at: list[I64] = []
        found_refs: list[U64] = []
        if len(hashes) <= _RECENT_PAIRS_MAX // 4:
            for index, hashed in enumerate(hashes.tolist()):
                refs = self._recent.get(hashed)
                if refs:
                    found_at.append(np.full(len(refs), index))
                    found_refs.append(np.array(refs, np.uint64))
        return found_at, found_refs

    def close(self) -> None:
        self._files = []


def _sorted(hashes: U64, refs: U64) -> Pairs:
    order = np.argsort(hashes)
    return hashes[order], refs[order]


def _merged(runs: list[_Run]) -> Pairs:
    pairs = [run.pairs for run in runs]
    return _sorted(np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs]))


def _ranks(counts: I64) -> I64:
    """0..count-1 for every count, one after another."""
    ends = np.cumsum(counts)
    ranks: I64 = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    return ranks
