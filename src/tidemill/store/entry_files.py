"""The entries as another process or thread reads them: from the files, never locking the writer.

Owns nothing on disk. Readers must stay below the synced end that the broker gives them; what lies there
never changes, except that whole chunks disappear from the head when everything in them is settled.

A row that fails its check is read as one that is due at once. So it is handed over, and the releaser, which
derives it again from the log, holds it until its time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.log.row_table import RowTable
from tidemill.store.entry_format import ENTRY, Entries
from tidemill.store.row_check import salts_of, sealed_mask


class EntryFiles:
    """A read-only view of the entries table."""

    def __init__(
        self, disk: Disk, directory: Path, chunk_rows: int, head_seq: Callable[[], int] | None = None
    ) -> None:
        """`head_seq` tells the head where it is known: no files at all may mean that all are settled."""
        self._known_head_seq = head_seq
        self._disk = disk
        self._directory = directory
        self._table = RowTable(disk, directory, ENTRY, chunk_rows, lambda: False)

    @property
    def head_seq(self) -> int:
        """The lowest seq that can be read."""
        if self._known_head_seq is not None:
            return self._known_head_seq()
        return min((int(name) for name in self._disk.names(self._directory) if name.isdigit()), default=0)

    def rows(self, first_seq: int, end_seq: int) -> Entries:
        return _due_where_damaged(self._table.read(first_seq, end_seq), np.arange(first_seq, end_seq))

    def take(self, seqs: I64) -> Entries:
        return _due_where_damaged(self._table.take(seqs), seqs)

    def close(self) -> None:
        self._table.close()


def _due_where_damaged(rows: Entries, seqs: I64) -> Entries:
    """The rows, with zeros in place of those that fail their check."""
    is_sound = sealed_mask(rows, salts_of(seqs))
    if is_sound.all():
        return rows
    rows = rows.copy()
    rows[~is_sound] = np.zeros(1, ENTRY)
    return rows
