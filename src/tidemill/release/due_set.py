"""A set of rows in memory that gives back those that are due: the near set, and rows that wait for a while.

Owns sorted runs with a cursor each, and a small heap for rows that come one by one. Adding a batch costs a
sort of that batch; taking what is due costs a binary search in each run. The number of runs stays small,
because similar ones are merged.

Bound: the caller looks at `count` and stops adding; nothing here drops a row.
"""

from __future__ import annotations

import heapq

import numpy as np

from tidemill.log.arrays import I64, Rows
from tidemill.release.due_rows import DUE_ROW, NO_ROWS, in_order, joined, seqs_between

_HEAP_MAX = 4096
_BATCH_MIN = 64


class DueSet:
    """Rows by due time. Not thread-safe: the releaser's lock protects it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int]] = []
        self._runs: list[Rows] = []

    @property
    def count(self) -> int:
        return len(self._heap) + sum(len(run) for run in self._runs)

    def add(self, rows: Rows) -> None:
        if len(rows) >= _BATCH_MIN:
            self._keep(in_order(rows))
            return
        for row in rows.tolist():
            heapq.heappush(self._heap, row)
        if len(self._heap) > _HEAP_MAX:
            self._keep(in_order(np.array(self._heap, DUE_ROW)))
            self._heap = []

    def due_count(self, now_ms: int) -> int:
        """How many are due; a look, which may come from any thread."""
        runs, heap = list(self._runs), list(self._heap)
        in_runs = sum(int(np.searchsorted(run["deliver_at_ms"], now_ms, "right")) for run in runs)
        return in_runs + sum(row[0] <= now_ms for row in heap)

    def due_seqs(self, from_ms: int, until_ms: int) -> list[I64]:
        """Seqs of rows due in `[from, until]`, in parts; a look."""
        return [seqs_between(run, from_ms, until_ms) for run in self.runs()]

    def runs(self) -> list[Rows]:
        """All rows, in runs that are in order each."""
        return [*self._runs, in_order(np.array(self._heap, DUE_ROW))] if self._heap else list(self._runs)

    def next_due_ms(self) -> int | None:
        """The earliest due time in the set; a look, which may come from any thread."""
        firsts = [int(run["deliver_at_ms"][0]) for run in self._runs]
        firsts.extend(row[0] for row in self._heap[:1])  # another thread may empty it meanwhile
        return min(firsts, default=None)

    def take_due(self, now_ms: int, limit: int) -> Rows:
        """Remove and return rows due at or before `now_ms`, in order; the earliest `limit` of them."""
        parts = [run[: int(np.searchsorted(run["deliver_at_ms"], now_ms, "right"))] for run in self._runs]
        from_heap = []
        while self._heap and self._heap[0][0] <= now_ms:
            from_heap.append(heapq.heappop(self._heap))
        self._runs = [
            rest for run, part in zip(self._runs, parts, strict=True) if len(rest := run[len(part) :])
        ]
        due = joined([*parts, np.array(from_heap, DUE_ROW) if from_heap else NO_ROWS])
        if len(due) > limit:
            self._keep(due[limit:])
        return due[:limit]

    def _keep(self, run: Rows) -> None:
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            self._runs[-2:] = [joined(self._runs[-2:])]
