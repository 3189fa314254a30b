"""Stage four: timers whose slot has come: which are handed over, which are placed again.

A slot only finds the chain. The entry says when a message is really due, so a timer that was rolled is
distinguished from one that is due by its entry alone.

Invariant: each timer that goes in comes out in exactly one of the two results.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64, U16, Flags
from tidemill.timer.ready_row_format import READY, ReadyRows
from tidemill.timer.stages.admit import Batch
from tidemill.timer.stages.place import is_due

_KEY_BITS = 63


def split(batch: Batch, open_tick: int, tick_ms: int) -> tuple[Batch, Batch]:
    """(due, not yet due) of a batch, seen from the end of the step."""
    due = is_due(batch.entries["deliver_at_ms"], open_tick, tick_ms)
    if due.all():
        return batch, batch.where(~due)
    return batch.where(due), batch.where(~due)


def agree(batch: Batch, frames: I64, rolls: Flags, open_tick: int, tick_ms: int) -> bool:
    """Whether timers are those of their entries: each names the frame that its entry does, and one whose slot
    has come without being due was rolled. An entry with no due time is damaged and says nothing."""
    entries = batch.entries
    wrong = (entries["place"] >> np.uint64(16)).view(np.int64) != frames
    due = is_due(entries["deliver_at_ms"], open_tick, tick_ms)
    if not due.all():
        wrong |= ~(rolls | due)
    return not wrong.any() or not (wrong & (entries["deliver_at_ms"] != 0)).any()


def hand_over(batch: Batch) -> tuple[ReadyRows, U16]:
    """Ready rows sorted by (deliver-at, seq), distinct where the batch is; and the placements of each."""
    rows = np.empty(len(batch), READY)
    if not len(batch):
        return rows, batch.placements
    deliver_at_ms: I64 = batch.entries["deliver_at_ms"].astype(np.int64)
    first_ms, first_seq = int(deliver_at_ms.min()), int(batch.seqs.min())
    ms_bits = (int(deliver_at_ms.max()) - first_ms).bit_length()
    seq_bits = (int(batch.seqs.max()) - first_seq).bit_length()
    if ms_bits + seq_bits > _KEY_BITS:
        order = np.lexsort((batch.seqs, deliver_at_ms))
        rows["deliver_at_ms"], rows["seq"] = deliver_at_ms[order], batch.seqs[order]
        return rows, batch.placements[order]
    # Both fit into one integer, and sorting that is several times faster than ordering by two columns.
    keys = ((deliver_at_ms - first_ms) << seq_bits) | (batch.seqs - first_seq)
    if (batch.placements == batch.placements[0]).all():
        placements = batch.placements
        keys.sort()
    else:
        order = np.argsort(keys)
        keys, placements = keys[order], batch.placements[order]
    rows["deliver_at_ms"] = (keys >> seq_bits) + first_ms
    rows["seq"] = (keys & ((1 << seq_bits) - 1)) + first_seq
    return rows, placements
