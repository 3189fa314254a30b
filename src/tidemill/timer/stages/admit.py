"""Stage one: which rows of the entries table belong to this shard's wheel.

Owns the choice by shard and by flag. Near entries went straight to the releaser and level entries have
their own queues, so the engine has both skipped.

Invariant: a range of seqs determines the result; asked again, it answers the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.timer.stages.rows import chosen_rows, joined_rows

# Rows as the store's entry format has them; the stages use some of its columns by name.
Entries = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries with their seqs, side by side."""

    seqs: npt.NDArray[np.int64]
    entries: Entries

    def __len__(self) -> int:
        return len(self.seqs)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Batch:
        return self if chosen.all() else Batch(self.seqs[chosen], chosen_rows(self.entries, chosen))


def admit(rows: Entries, first_seq: int, shard: int, shards: int, skipped_flags: int) -> Batch:
    """The rows of `shard` among `rows`, which begin at `first_seq`, without those that have a skipped flag.

    Views where nothing is left out.
    """
    start = (shard - first_seq) % shards
    own = rows[start::shards]
    seqs = np.arange(first_seq + start, first_seq + len(rows), shards, dtype=np.int64)
    return Batch(seqs, own).where((own["flags"] & skipped_flags) == 0)


def join(first: Batch, second: Batch) -> Batch:
    """Both batches as one."""
    if not len(second):
        return first
    if not len(first):
        return second
    return Batch(np.concatenate((first.seqs, second.seqs)), joined_rows(first.entries, second.entries))
