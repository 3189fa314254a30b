"""The entries as another process or thread reads them: from the files, never locking the writer.

Owns nothing on disk. Readers must stay below the synced end that the broker gives them; what lies there
never changes, except that whole chunks disappear from the head when everything in them is settled.

Rows are not verified here: that would cost the timer a tenth of its speed. What a damaged one brings to the
releaser is verified there, and derived again from the log; what it keeps back is found when its minute is
over (`release/sweeper.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.log.row_table import RowTable
from tidemill.store.formats.entry_format import ENTRY, Entries


class EntryFiles:
    """A read-only view of the entries table."""

    def __init__(
        self, disk: Disk, directory: Path, chunk_rows: int, head_seq: Callable[[], int] | None = None
    ) -> None:
        """`head_seq` is the head where it is known: no files at all may mean that all are settled."""
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
        return self._table.read(first_seq, end_seq)

    def take(self, seqs: I64) -> Entries:
        return self._table.take(seqs)

    def close(self) -> None:
        self._table.close()
