"""What the engine asks of a timer store, whichever way it keeps timers.

Two are foreseen: the wheel (`wheel_store.py`) and RocksDB. Both hold timers of one shard, give back those
whose tick has come, and can be set back to any cursor that is durable.
Leaves to others: which timers are due at once (the engine), ready files and the cursor itself.

Invariants: what `absorb` took is durable when it returns, but counts only once a cursor with the new
`mark` is; `due` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemill.timer.cursor import Cursor, StoreMark
from tidemill.timer.stages.admit import Batch


@dataclass(frozen=True, slots=True)
class Drained:
    """Timers whose slots have come, and how far that went."""

    seqs: npt.NDArray[np.int64]
    tick: int
    resume_position: int

    @property
    def open_tick(self) -> int:
        """The first slot that still takes timers after this."""
        return self.tick + (self.resume_position >= 0)


class TimerStore(Protocol):
    """Timers of one shard. One user at a time, under the shard's lock."""

    def truncate(self, cursor: Cursor) -> None:
        """Be what `cursor` says, whatever a crash or a failed step left behind. Cheap when it already is."""
        ...

    def due(self, cursor: Cursor, until_tick: int, due_max: int) -> Drained:
        """Timers in slots from the cursor's tick on, below `until_tick`: about `due_max` and at least a few.

        The tick reached may be less than `until_tick`; it is more than the cursor's, or inside a slot, unless
        `until_tick` asks for nothing.
        """
        ...

    def absorb(self, batch: Batch, open_tick: int) -> int | None:
        """Take timers, none of them due before `open_tick`; durable on return. The earliest slot used."""
        ...

    def next_due(self, cursor: Cursor, from_tick: int) -> int | None:
        """The first tick at or after `from_tick` that has timers, of those the cursor knows."""
        ...

    def mark(self, tick: int) -> StoreMark:
        """What must be in a cursor at `tick` for the present state to count."""
        ...

    def drop_behind(self, tick: int) -> None:
        """Free what is needed only for ticks below `tick`, which a durable cursor has passed."""
        ...

    def sync(self) -> None:
        """Make the whole store survive a power cut without work at the next opening."""
        ...

    def close(self) -> None: ...
