"""The newest pairs of the find index, in memory: what came last as it came, the rest in a few sorted runs.

Owns a filter before them as well. Nearly every hash that is asked for is new (a send asks whether its id was
there before), and the filter says so at the price of two looks, whatever number of runs there is.

Invariant: the filter knows every pair; it may know of a hash that is not there, never the other way round.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64, U64, Flags
from tidemill.store.find.find_runs import Hits, Pairs, Run, joined, merged

# So many pairs stay as they came, until they become a run.
_FRESH_PAIRS_MAX = 1024
# Runs from here on are not merged any more: that would hold up the writer.
_LARGE_RUN = 1 << 14
# With so many cells for each pair, one hash in 250 passes without being there when the memory is full.
_CELLS_PER_PAIR = 32


class FindMemory:
    """Refs by hash, of at most about `pairs_max` pairs. One writer; lookups under the same lock."""

    def __init__(self, pairs_max: int) -> None:
        self._filter = _Filter(_CELLS_PER_PAIR * pairs_max)
        self._fresh: list[Pairs] = []
        self._fresh_pairs = 0
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return self._fresh_pairs + sum(map(len, self._runs))

    def add(self, hashes: U64, refs: U64) -> None:
        self._filter.add(hashes)
        if len(hashes) >= _LARGE_RUN:
            # Sorted only when it is read or written.
            self._runs.append(Run((hashes, refs), is_sorted=False))
            return
        self._fresh.append((hashes, refs))
        self._fresh_pairs += len(hashes)
        if self._fresh_pairs > _FRESH_PAIRS_MAX:
            self._keep_run(Run(merged([Run(pairs, is_sorted=False) for pairs in self._fresh])))
            self._fresh, self._fresh_pairs = [], 0

    def _keep_run(self, run: Run) -> None:
        """Keep a small run, merging it with its neighbour while that is not much larger."""
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < min(_LARGE_RUN, 2 * len(self._runs[-1])):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(Run(merged([older, newer])))

    def find(self, wanted: U64) -> list[Hits]:
        """Every pair with one of these hashes."""
        known = self._filter.known(wanted).nonzero()[0]
        if not len(known):
            return []
        found = [run.hits(wanted[known]) for run in self.runs()]
        return [(known[at], refs) for at, refs in found]

    def has_any(self, wanted: U64) -> bool:
        """Whether there is a pair with one of these hashes."""
        known = self._filter.known(wanted)
        return bool(np.count_nonzero(known)) and any(run.has_any(wanted[known]) for run in self.runs())

    def runs(self) -> list[Run]:
        """All pairs."""
        if not self._fresh:
            return self._runs
        self._fresh = [joined(self._fresh)]
        return [*self._runs, Run(self._fresh[0], is_sorted=False)]


class _Filter:
    """A set of hashes that forgets none and is now and then mistaken about others."""

    def __init__(self, cell_count: int) -> None:
        bits = max(3, (cell_count - 1).bit_length())
        self._cells = np.zeros(1 << bits, np.bool_)
        self._low = np.array((1 << bits) - 1, np.uint64)
        self._above = np.array(64 - bits, np.uint64)

    def add(self, hashes: U64) -> None:
        for cells in self._cells_of(hashes):
            self._cells[cells] = True

    def known(self, hashes: U64) -> Flags:
        one, other = self._cells_of(hashes)
        known: Flags = self._cells[one] & self._cells[other]
        return known

    def _cells_of(self, hashes: U64) -> tuple[I64, I64]:
        """The two cells of each hash, in the kind of number that NumPy would else make of them first."""
        return (hashes & self._low).view(np.int64), (hashes >> self._above).view(np.int64)
