"""Where a step reads entries from: the store's table, or a reader of its files in another process.

Owns nothing; it is the seam between the timer and the store.
"""

from __future__ import annotations

from typing import Protocol

from tidemill.log.arrays import I64
from tidemill.store.formats.entry_format import Entries


class EntrySource(Protocol):
    """Entries by seq. Only seqs from `head_seq` up to the synced end in the target are asked for."""

    @property
    def head_seq(self) -> int:
        """The lowest seq that can be read; everything below is settled and cut."""
        ...

    def rows(self, first_seq: int, end_seq: int) -> Entries:
        """The entries `[first_seq, end_seq)`; a view where possible."""
        ...

    def take(self, seqs: I64) -> Entries:
        """A copy of the entries of `seqs`, in that order."""
        ...
