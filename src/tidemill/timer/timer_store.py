"""What the engine asks of a timer store, whichever way it keeps timers, and of the entries.

There are two timer stores: the wheel (`wheel_store.py`) and RocksDB (`rocks_store.py`). Both hold timers of
one shard, give back those whose tick has come, and know what counts after a crash.
Leaves to others: which timers are due at once (the engine), ready files, the cursor's file.

Invariants: what `absorb` took is durable when `commit` returns, and counts only with the cursor given there;
`due` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.log.arrays import I64, U16, Flags
from tidemill.store.formats.entry_format import Entries
from tidemill.timer.cursor import Cursor, StoreMark
from tidemill.timer.stages.admit import Batch


@dataclass(frozen=True, slots=True)
class Drained:
    """Timers whose slots have come, and how far that went."""

    seqs: I64
    placements: U16
    tick: int
    resume_position: int
    # What the store says of each timer besides, where it has no checksum of its own: the log offset of the
    # message's frame, and whether the slot was only a stop on the way.
    frames: I64 | None = None
    rolls: Flags | None = None

    @property
    def open_tick(self) -> int:
        """The first slot that still takes timers after this."""
        return self.tick + (self.resume_position >= 0)


class TimerStore(Protocol):
    """Timers of one shard. One user at a time, under the shard's lock."""

    def truncate(self, cursor: Cursor) -> Cursor:
        """Be what the durable cursor says, whatever a crash or a failed step left; cheap when it already is.

        `cursor` is the one in the shard's file. Returns the one that counts: the store's own where it keeps
        one, which may be a step ahead of the file.
        """
        ...

    def due(self, cursor: Cursor, until_tick: int, due_max: int) -> Drained:
        """Timers in slots from the cursor's tick on, below `until_tick`: about `due_max` and at least a few.

        The tick reached may be less than `until_tick`; it is more than the cursor's, or inside a slot, unless
        `until_tick` asks for nothing.
        """
        ...

    def absorb(self, batch: Batch, open_tick: int) -> int | None:
        """Take timers, none of them due before `open_tick`. Returns the earliest slot used."""
        ...

    def next_due(self, cursor: Cursor, from_tick: int) -> int | None:
        """The first tick from `from_tick` on, which is past the cursor's next, that has timers it knows."""
        ...

    def mark(self, tick: int) -> StoreMark:
        """What must be in a cursor at `tick` for the present state to count."""
        ...

    def commit(self, cursor: Cursor) -> None:
        """Make what was absorbed durable, so that it counts with `cursor`, which the engine saves next."""
        ...

    def drop_behind(self, tick: int) -> None:
        """Free what is needed only for ticks below `tick`, which a durable cursor has passed."""
        ...

    def close(self) -> None: ...


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
