"""The entries: one row for each timed message, verified wherever one is read.

Owns the table `entries/` of an index directory: rows are given their check when they are written, and a row
that fails it when it is read is derived again from the commit log, with every other damaged row of its
segment. A reader never sees a damaged row.

Invariant: a row that `read` or `take` returns is the one that the log says, but for the rows that a reader
said do not matter to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tidemill.log.arrays import I64, Flags, Rows
from tidemill.log.disk import Disk
from tidemill.log.row_table import MakeRoom, RowTable, TableSync
from tidemill.store.damage import Derived, Repairs
from tidemill.store.derivation import Derivation, not_derivable, ranges_of
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.row_check import salts_of, seal, sealed_mask
from tidemill.store.ledger import Ledger, State


class EntryTable:
    """Entries by seq. One writer; readers share it under the writer lock."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        chunk_rows: int,
        make_room: MakeRoom,
        derivation: Derivation,
        repairs: Repairs,
    ) -> None:
        self._table = RowTable(disk, directory, ENTRY, chunk_rows, make_room)
        self._derivation = derivation
        self._repairs = repairs
        # Up to where the log's frames have been applied: no row above is derived.
        self.end_seq: Callable[[], int] = lambda: 0

    def write(self, first_seq: int, rows: Rows) -> None:
        """Put new rows at `first_seq` and after, with their checks."""
        seal(rows, salts_of(np.arange(first_seq, first_seq + len(rows))))
        self._table.write(first_seq, rows)

    def read(self, first_seq: int, end_seq: int, matters: Flags | None = None) -> Rows:
        """The entries `[first_seq, end_seq)`; a view where possible. `matters`: only these need be right."""
        seqs = np.arange(first_seq, end_seq)
        rows = self._table.read(first_seq, end_seq)
        damaged = self._damaged(rows, seqs, matters)
        if not len(damaged):
            return rows
        self._repair(damaged)
        rows = self._table.read(first_seq, end_seq)
        self._require_sound(self._damaged(rows, seqs, matters))
        return rows

    def take(self, seqs: I64) -> Rows:
        """A copy of the entries of `seqs`, in that order."""
        rows = self._table.take(seqs)
        damaged = self._damaged(rows, seqs)
        if not len(damaged):
            return rows
        self._repair(damaged)
        rows = self._table.take(seqs)
        self._require_sound(self._damaged(rows, seqs))
        return rows

    @staticmethod
    def _damaged(rows: Rows, seqs: I64, matters: Flags | None = None) -> I64:
        """The seqs whose rows fail their check."""
        if not len(rows):
            return seqs[:0]
        is_sound = sealed_mask(rows, salts_of(seqs))
        if is_sound.all():
            return seqs[:0]
        if matters is not None:
            is_sound |= ~matters
        return seqs[~is_sound]

    def _repair(self, damaged: I64) -> None:
        """Derive every damaged row of the segments that hold these seqs."""
        done_to = -1
        for seq in np.sort(damaged).tolist():
            if seq < done_to:
                continue
            stretch = self._derivation.stretch_of_seq(seq)
            first_seq, done_to = stretch.first, stretch.end
            derived, is_known = self._derivation.entries(stretch, self.end_seq())
            present = self._table.read(first_seq, first_seq + len(derived))
            is_bad = is_known & ~sealed_mask(present, salts_of(first_seq + np.arange(len(derived))))
            for start, end in ranges_of(np.flatnonzero(is_bad)):
                self.write(first_seq + start, derived[start:end])
                self._report(first_seq + start, first_seq + end)

    def _report(self, first_seq: int, end_seq: int) -> None:
        self._repairs.add(
            Derived.ENTRIES,
            self._table.path_of(first_seq),
            f"the entries of seqs {first_seq} to {end_seq - 1}",
            end_seq - first_seq,
        )

    def _require_sound(self, damaged: I64) -> None:
        if len(damaged):
            seq = int(damaged[0])
            raise not_derivable(f"{self._table.path_of(seq)}: the entry of seq {seq}")

    # -- the table's own ---------------------------------------------------------------------------

    def cut_head(self, below_seq: int) -> None:
        self._table.cut_head(below_seq)

    def cut_tail(self, end_seq: int) -> None:
        self._table.cut_tail(end_seq)

    def begin_sync(self) -> TableSync:
        return self._table.begin_sync()

    def undo_sync(self, begun: TableSync) -> None:
        self._table.undo_sync(begun)

    def close(self) -> None:
        self._table.close()


# How many entries one pass over the table looks at.
SCAN_ROWS = 1 << 20


def pending_with(flag: int, entries: EntryTable, ledger: Ledger, from_seq: int) -> I64:
    """Seqs at or above `from_seq` that are pending and whose entry has the flag."""
    found: list[I64] = []
    first = max(from_seq, ledger.head_seq)
    while first < ledger.next_seq:
        end = min(ledger.next_seq, (first // SCAN_ROWS + 1) * SCAN_ROWS)
        found.append(pending_in(flag, entries, ledger, first, end))
        first = end
    return np.concatenate(found) if found else np.empty(0, np.int64)


def pending_in(flag: int, entries: EntryTable, ledger: Ledger, first: int, end: int) -> I64:
    """Seqs in `[first, end)` that are pending and whose entry has the flag."""
    if first >= end:
        return np.empty(0, np.int64)
    pending = ledger.range_states(first, end) == State.PENDING
    is_flagged = entries.read(first, end, pending)["flags"] & flag != 0
    return first + np.flatnonzero(is_flagged & pending)
