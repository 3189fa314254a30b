"""The idle rule: when a step is called for, and when to ask again.

Owns one decision, the same for the embedded runner and the Spark driver. A step is called for when

    there are as many new rows as a step may take, or
    the oldest far entry not absorbed yet is older than a quarter of the lead, or comes from the future
    (the clock was set back: behind it may wait others that are really older), or
    the next timer in the wheel falls due within three quarters of the lead, its whole slot within the lead.

A far entry is due a whole lead after it was stored at the earliest, so both waits leave three quarters
of the lead to do the work.

Invariants: pure; the wake time is the first moment at which the same state would call for a step; a step
that is called for has something to do, so no call is in vain.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardPositions:
    """How far the shards are, and what waits: the input of the rule."""

    unabsorbed_rows: int
    oldest_far_stored_at_ms: int | None
    next_due_tick: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """Whether a step is called for now; if not, when it will be unless something changes (None: never)."""

    is_called_for: bool
    wake_ms: int | None


def call_for_step(positions: ShardPositions, now_ms: int, lead_ms: int, tick_ms: int, rows_max: int) -> Call:
    if positions.unabsorbed_rows >= rows_max:
        return Call(True, now_ms)
    moments = []
    if positions.oldest_far_stored_at_ms is not None:
        if positions.oldest_far_stored_at_ms > now_ms:
            return Call(True, now_ms)
        moments.append(positions.oldest_far_stored_at_ms + lead_ms // 4)
    if positions.next_due_tick is not None:
        # With a lead of less than four ticks the whole slot is within the lead only a little later.
        slot_ms = positions.next_due_tick * tick_ms
        moments.append(max(slot_ms - lead_ms * 3 // 4, slot_ms + tick_ms - lead_ms))
    wake_ms = min(moments, default=None)
    if wake_ms is not None and wake_ms <= now_ms:
        return Call(True, now_ms)
    return Call(False, wake_ms)


def target_tick(now_ms: int, lead_ms: int, tick_ms: int) -> int:
    """The tick a step at `now_ms` goes to: everything due before it is handed over, `lead_ms` early."""
    return (now_ms + lead_ms) // tick_ms
