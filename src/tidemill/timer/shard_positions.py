"""Where the shards stand, as the idle rule wants to know it: for the runner, the driver, the takeover."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.timer.cursor import Cursor
from tidemill.timer.far_scan import FarScan
from tidemill.timer.idle_rule import Call, ShardPositions, call_for_step
from tidemill.timer.target import Target


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
