"""The ledger: two bits for every timed message say what became of it.

Owns the states of the seqs `[head_seq, next_seq)`: pending, released, cancelled, moved. Kept packed in
memory, four to a byte; a checkpoint stores the same bytes. Derived from the commit log: it changes only
while a frame is applied, in frame order.

A checkpoint takes a *copy* of it. The bytes are copied while the ledger goes on changing: since a state
leaves PENDING once, a seq that was settled after the copy was begun was pending then, and is put back.

Invariant: a state leaves PENDING once and never changes again. `settle` acts on pending seqs only and
says which those were; this one rule decides every race.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tidemill.log.arrays import I64, U8, Flags
from tidemill.log.disk import Bytes

_HEADER = struct.Struct("<QQ")
_PER_BYTE = 4


class State(IntEnum):
    PENDING = 0
    RELEASED = 1
    CANCELLED = 2
    MOVED = 3


class Ledger:
    """States by seq. One writer, under the log writer's lock; reads of single states need no lock."""

    def __init__(self, head_seq: int = 0) -> None:
        # Kept a multiple of four, so that cutting the head moves whole bytes.
        self._first = head_seq // _PER_BYTE * _PER_BYTE
        self.head_seq = head_seq
        self.next_seq = head_seq
        self._packed: U8 = np.zeros(1024, np.uint8)
        self._settled_since: list[I64] | None = None  # a copy was begun; those that were settled meanwhile

    def grow(self, count: int) -> int:
        """Make `count` new pending seqs; returns the first."""
        first = self.next_seq
        self.next_seq += count
        needed = (self.next_seq - self._first + _PER_BYTE - 1) // _PER_BYTE
        if needed > len(self._packed):
            grown = np.zeros(max(needed, len(self._packed) * 2), np.uint8)
            grown[: len(self._packed)] = self._packed
            self._packed = grown
        return first

    def states(self, seqs: I64) -> U8:
        """The state of each seq; all must lie in `[head_seq, next_seq)`."""
        index = seqs - self._first
        states: U8 = self._packed[index >> 2] >> ((index & 3) << 1).astype(np.uint8) & np.uint8(3)
        return states

    def range_states(self, first_seq: int, end_seq: int) -> U8:
        """The states of a run of seqs, without making an index array."""
        start, end = first_seq - self._first, end_seq - self._first
        low = start // _PER_BYTE
        packed = self._packed[low : (end + _PER_BYTE - 1) // _PER_BYTE]
        unpacked: U8 = packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
        return unpacked.reshape(-1)[start - low * _PER_BYTE : end - low * _PER_BYTE]

    def state(self, seq: int) -> State:
        index = seq - self._first
        return State(int(self._packed[index >> 2]) >> ((index & 3) << 1) & 3)

    def first_pending(self) -> int:
        """The lowest pending seq; `next_seq` where none is."""
        first = self.head_seq
        while first < self.next_seq:
            end = min(self.next_seq, first + (1 << 20))
            pending = np.flatnonzero(self.range_states(first, end) == State.PENDING)
            if len(pending):
                return first + int(pending[0])
            first = end
        return first

    def knows(self, seq: int) -> bool:
        return self.head_seq <= seq < self.next_seq

    def is_pending(self, seq: int) -> bool:
        return self.knows(seq) and self.state(seq) is State.PENDING

    def pending_mask(self, seqs: I64) -> Flags:
        """Which of `seqs` are pending; seqs the ledger does not know are not."""
        if len(seqs) == 1:  # what falls due at rest comes one by one, and each microsecond is lateness
            return np.array([self.is_pending(int(seqs[0]))])
        known = (seqs >= self.head_seq) & (seqs < self.next_seq)
        if known.all():
            return np.equal(self.states(seqs), State.PENDING)
        mask = np.zeros(len(seqs), np.bool_)
        mask[known] = self.states(seqs[known]) == State.PENDING
        return mask

    def settle(self, seqs: I64, state: State) -> Flags:
        """Give the pending ones among `seqs` (all distinct) their final state; says which they were."""
        acted = self.pending_mask(seqs)
        if (settled_since := self._settled_since) is not None:
            settled_since.append(seqs[acted])  # before the bits change: who copies those finds this as well
        if len(seqs) == 1:
            place = int(seqs[0]) - self._first
            if acted[0]:
                self._packed[place >> 2] |= state << ((place & 3) << 1)
            return acted
        index = (seqs if acted.all() else seqs[acted]) - self._first
        bits = np.left_shift(np.uint8(state), ((index & 3) << 1).astype(np.uint8), dtype=np.uint8)
        np.bitwise_or.at(self._packed, index >> 2, bits)
        return acted

    def cut_head(self, below_seq: int) -> None:
        """Forget seqs below `below_seq`; none of them may be pending."""
        below_seq = min(below_seq, self.next_seq)
        if below_seq <= self.head_seq:
            return
        new_first = below_seq // _PER_BYTE * _PER_BYTE
        used = (self.next_seq - self._first + _PER_BYTE - 1) // _PER_BYTE
        kept = self._packed[(new_first - self._first) // _PER_BYTE : used]
        self._packed = np.concatenate((kept, np.zeros(1024, np.uint8)))
        self._first = new_first
        self.head_seq = below_seq

    def encode(self) -> bytes:
        return b"".join(self.begin_copy().parts())

    def begin_copy(self) -> LedgerCopy:
        """The states as of now, to be encoded beside the writer; one copy at a time, and no head cut."""
        used = (self.next_seq - self._first + _PER_BYTE - 1) // _PER_BYTE
        self._settled_since = []
        header = _HEADER.pack(self.head_seq, self.next_seq)
        return LedgerCopy(self, header, self._first, self._packed[:used], self._settled_since)

    def end_copy(self) -> None:
        self._settled_since = None

    @classmethod
    def decode(cls, data: bytes) -> Ledger:
        head_seq, next_seq = _HEADER.unpack_from(data)
        ledger = cls(head_seq)
        ledger.grow(next_seq - head_seq)
        packed = np.frombuffer(data, np.uint8, offset=_HEADER.size)
        ledger._packed[: len(packed)] = packed
        return ledger


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """The ledger as it was at one moment."""

    _ledger: Ledger
    _header: bytes
    _first: int
    _packed: U8  # the ledger's own bytes, which go on changing
    _settled_since: list[I64]

    def parts(self) -> list[Bytes]:
        """The states as of the moment the copy was begun, encoded; needs no lock, but once."""
        packed = self._packed.copy()
        self._ledger.end_copy()
        for seqs in self._settled_since:
            index = seqs - self._first
            index = index[index >> 2 < len(packed)]
            kept = ~np.left_shift(np.uint8(3), ((index & 3) << 1).astype(np.uint8), dtype=np.uint8)
            np.bitwise_and.at(packed, index >> 2, kept)
        return [self._header, packed.data]
