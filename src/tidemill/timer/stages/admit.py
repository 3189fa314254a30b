"""Stage one: which rows of the entries table belong to this shard's wheel.

Owns the choice by shard and by flag. Near entries went straight to the releaser and level entries have
their own queues, so the engine has both skipped. Owns the batch that the later stages pass on, too, and in it
how often each timer was placed: once more whenever its slot has come before its time.

Invariant: a range of seqs determines the result; asked again, it answers the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.core.model import NEVER_ROLLED, NOT_COUNTED, PLACEMENTS_MAX
from tidemill.log.arrays import I64, U16, Flags, Rows, joined, picked

# Rows as the store's entry format has them; the stages use some of its columns by name.
Entries = Rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries with their seqs and placements (rolls + 1, 0 where not counted), side by side."""

    seqs: I64
    entries: Entries
    placements: U16

    def __len__(self) -> int:
        return len(self.seqs)

    def where(self, chosen: Flags) -> Batch:
        if chosen.all():
            return self
        return Batch(self.seqs[chosen], picked(self.entries, chosen), self.placements[chosen])


def new_batch(seqs: I64, entries: Entries) -> Batch:
    """Timers that the wheel has not had before."""
    return Batch(seqs, entries, np.full(len(seqs), NEVER_ROLLED, np.uint16))


def placed_again(batch: Batch) -> Batch:
    """The same timers on their next placement. One that cannot be counted on is not counted from then on."""
    is_counted = (batch.placements != NOT_COUNTED) & (batch.placements < PLACEMENTS_MAX)
    placements = np.where(is_counted, batch.placements + 1, NOT_COUNTED).astype(np.uint16)
    return Batch(batch.seqs, batch.entries, placements)


def admit(rows: Entries, first_seq: int, shard: int, shards: int, skipped_flags: int) -> Batch:
    """The rows of `shard` among `rows`, which begin at `first_seq`, without those that have a skipped flag.

    Views where nothing is left out.
    """
    start = (shard - first_seq) % shards
    own = rows[start::shards]
    seqs = np.arange(first_seq + start, first_seq + len(rows), shards, dtype=np.int64)
    return new_batch(seqs, own).where((own["flags"] & skipped_flags) == 0)


def join(first: Batch, second: Batch) -> Batch:
    """Both batches as one."""
    if not len(second):
        return first
    if not len(first):
        return second
    return Batch(
        np.concatenate((first.seqs, second.seqs)),
        joined((first.entries, second.entries)),
        np.concatenate((first.placements, second.placements)),
    )
