"""Walking the chains of many slots at once.

A chain can be any shape: one unit in each of a hundred thousand slots, a million contiguous units in one,
or a single unit from each of ten thousand steps. All chains are walked together in rounds. Each round
looks at a block of neighbours below every chain's head and keeps those that point at one another; blocks
double while they are full and shrink while they are not. Where few chains are left and their units are
scattered, a round costs more than following the links one by one, so that is done for a while instead.

    log index   0  1  2  3  4  5          heads: a at 5, b at 4
    chain       a  a  b  a  b  a          round 1, block 1: takes 5 and 4, next heads 3 and 2
    prev       -1  0 -1  1  2  3          round 2, block 1: takes 3 and 2, b has ended, next head 1
                                          round 3, block 2: takes 1 and 0, a has ended

Owns the walk only: finding the heads is the wheel's work, reading links the TimerLog's.

Invariant: every unit from the heads to the ends is returned once, in no promised order.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.log.arrays import I64
from tidemill.timer.wheel.timer_log import TimerLog
from tidemill.timer.wheel.timer_log_format import NO_POSITION

# Below this many units a round is slower than following the links one by one.
_ROUND_UNITS_MIN = 256
# How far links are followed before a round is tried again.
_FOLLOWED_UNITS = 4096
# Memory of one round: cells of a block matrix.
_CELLS_MAX = 1 << 21


def walk_chains(log: TimerLog, head_positions: I64, units_max: int | None = None) -> tuple[I64, I64]:
    """Indexes of the units on the chains that begin at `head_positions`, and the heads not reached.

    Without `units_max` every chain is walked to its end. With it the walk stops early, and the positions
    it would have gone on from are returned; it passes `units_max` only where there are more heads.
    Raises `CorruptionError` if a link leads nowhere or forward.
    """
    heads = log.layout.indexes_at(head_positions)
    found: list[I64] = []
    count = 0
    block = 1
    while len(heads) and (units_max is None or count < units_max):
        block = max(1, min(block, _CELLS_MAX // len(heads)))
        if units_max is not None:
            block = max(1, min(block, (units_max - count) // len(heads)))
        taken, next_heads = _round(log, heads, block)
        found.append(taken)
        count += len(taken)
        block = block * 2 if len(taken) * 2 > block * len(heads) else max(1, len(taken) // len(heads))
        heads = next_heads[next_heads >= 0]
        if len(taken) < _ROUND_UNITS_MIN and block * len(heads) < _ROUND_UNITS_MIN:
            budget = _FOLLOWED_UNITS if units_max is None else min(_FOLLOWED_UNITS, units_max - count)
            followed, heads = _follow(log, heads, budget)
            found.append(followed)
            count += len(followed)
    reached = np.concatenate(found) if found else np.empty(0, np.int64)
    return reached, log.layout.positions_of(heads)


def _round(log: TimerLog, heads: I64, block: int) -> tuple[I64, I64]:
    """One block below every head: the indexes on the chain, and the next heads (-1 where it ended)."""
    if int(heads.min()) < log.start_index or int(heads.max()) >= log.end_index:
        raise CorruptionError("a TimerLog chain leads outside the log")
    cells = heads[:, None] - np.arange(block, dtype=np.int64)
    # A block may reach below the log; those cells repeat the lowest unit, which no link leads to from itself.
    np.maximum(cells, log.start_index, out=cells)
    prev = log.layout.indexes_at(log.prev_positions(cells.ravel())).reshape(cells.shape)
    is_linked = np.empty(cells.shape, np.bool_)
    is_linked[:, 0] = True
    is_linked[:, 1:] = prev[:, :-1] == cells[:, 1:]
    np.logical_and.accumulate(is_linked, axis=1, out=is_linked)
    chains = np.arange(len(heads))
    last = is_linked.sum(axis=1) - 1
    next_heads = prev[chains, last]
    if (next_heads >= cells[chains, last]).any():
        raise CorruptionError("a TimerLog chain runs forward")
    return cells[is_linked], next_heads


def _follow(log: TimerLog, heads: I64, budget: int) -> tuple[I64, I64]:
    """Follow each chain link by link, `budget` units in all."""
    positions: list[int] = []
    left: list[int] = []
    for head in log.layout.positions_of(heads).tolist():
        passed, rest = log.follow(head, max(0, budget - len(positions)))
        positions += passed
        if rest != NO_POSITION:
            left.append(rest)
    layout = log.layout
    passed_positions = np.array(positions, np.int64)
    indexes = layout.indexes_at(passed_positions)
    if (layout.positions_of(indexes) != passed_positions).any():
        raise CorruptionError("a TimerLog chain leads between two units")
    return indexes, layout.indexes_at(np.array(left, np.int64))
