"""What waits for a step of the timer, as the idle rule wants to know it: for runner, driver and takeover.

`FarScan` finds the oldest far entry that is not absorbed yet, without looking at any entry twice.

Owns what it has seen so far; the idle rule asks at every new batch, and most entries may be near.

An entry that is passed over is verified: were it far, nothing might call for a step that absorbs it, and what
is not absorbed is not missed when it is due. A damaged one counts as far and old: a step is called for.

Invariant: `_clear_from <= seq < _clear_to` holds no far entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.row_check import salts_of, sealed_mask
from tidemill.timer.cursor import Cursor
from tidemill.timer.idle_rule import Call, ShardPositions, call_for_step
from tidemill.timer.target import Target
from tidemill.timer.timer_store import EntrySource

# How many entries are looked at in one go.
_SCAN_ROWS = 1 << 16
_LONG_AGO_MS = 0


class FarScan:
    """Looks through the entries from the shards' cursors to the synced end."""

    def __init__(self, entries: EntrySource) -> None:
        self._entries = entries
        self._clear_from = 0
        self._clear_to = 0
        self._found: tuple[int, int] | None = None  # (seq, stored-at ms)

    def oldest_stored_at_ms(self, first_seq: int, end_seq: int) -> int | None:
        """When the first far entry in `[first_seq, end_seq)` was stored; None where there is none."""
        first_seq = max(first_seq, self._entries.head_seq)
        if not self._clear_from <= first_seq <= self._clear_to:
            self._clear_from = self._clear_to = first_seq
            self._found = None
        while self._found is None and self._clear_to < end_seq:
            self._look(min(end_seq, self._clear_to + _SCAN_ROWS))
        return None if self._found is None or self._found[0] >= end_seq else self._found[1]

    def _look(self, stop_seq: int) -> None:
        first_seq = self._clear_to
        rows = self._entries.rows(first_seq, stop_seq)
        far = (rows["flags"] & (FLAG_NEAR | FLAG_LEVEL)) == 0
        passed_count = int(np.argmax(far)) if far.any() else len(rows)
        if passed_count < len(rows):
            stop_seq = first_seq + passed_count
            self._found = (stop_seq, int(rows["stored_at_ms"][passed_count]))
        seqs = np.arange(first_seq, first_seq + passed_count)
        damaged = seqs[~sealed_mask(rows[:passed_count], salts_of(seqs))]
        if len(damaged):
            stop_seq = int(damaged[0])
            self._found = (stop_seq, _LONG_AGO_MS)
        self._clear_to = stop_seq


def positions_of(cursors: Sequence[Cursor], far_scan: FarScan, synced_end_seq: int) -> ShardPositions:
    """What waits, seen from the cursors of all shards."""
    first_seq = min(cursor.seq for cursor in cursors)
    return ShardPositions(
        synced_end_seq - first_seq,
        far_scan.oldest_stored_at_ms(first_seq, synced_end_seq),
        min((cursor.next_due_tick for cursor in cursors if cursor.next_due_tick is not None), default=None),
    )


def call_at(
    cursors: Sequence[Cursor], far_scan: FarScan, target: Target, lead_ms: int, tick_ms: int, rows_max: int
) -> Call:
    """Whether a step is called for at the target's time."""
    positions = positions_of(cursors, far_scan, target.synced_end_seq)
    return call_for_step(positions, target.now_ms, lead_ms, tick_ms, rows_max)
