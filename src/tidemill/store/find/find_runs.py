"""Sorted runs of (hash, ref) pairs: what the find index is made of, in memory and in files.

A ref is a seq; or with the top bit set, for a message that is not timed, its place; or the frame that
carried out a request with an id. Frames begin at multiples of 8, so the lowest bit of a frame's offset is
free to distinguish the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.log.arrays import I64, U64, Flags

PLACE_BIT = np.uint64(1 << 63)
_ROW_BITS = 16
REQUEST_BIT = np.uint64(1 << _ROW_BITS)  # with `PLACE_BIT`

Pairs = tuple[U64, U64]  # hashes, refs
Hits = tuple[I64, U64]  # index of the hash that was asked for, ref

NO_HITS: Hits = np.empty(0, np.int64), np.empty(0, np.uint64)


def are_places(refs: U64) -> Flags:
    """Which refs are places of messages that are not timed."""
    flags: Flags = (refs & PLACE_BIT != 0) & (refs & REQUEST_BIT == 0)
    return flags


def places_in(refs: U64) -> U64:
    """The places of messages that are not timed among refs."""
    return refs[are_places(refs)] & ~PLACE_BIT


def request_ref(frame_offset: int) -> int:
    """The ref of a frame that carried out a request."""
    return int(PLACE_BIT) | int(REQUEST_BIT) | frame_offset << _ROW_BITS


def request_frames_in(refs: U64) -> list[int]:
    """The offsets of frames that carried out a request among refs."""
    is_request = (refs & PLACE_BIT != 0) & (refs & REQUEST_BIT != 0)
    return [(ref & ~int(PLACE_BIT)) >> _ROW_BITS & ~1 for ref in refs[is_request].tolist()]


@dataclass(slots=True)
class Run:
    """Pairs, in order of their hashes or still to be put in order. `pairs` is replaced, never changed."""

    pairs: Pairs
    is_sorted: bool = True

    def __len__(self) -> int:
        return len(self.pairs[1])

    def in_order(self) -> Pairs:
        if not self.is_sorted:
            self.pairs, self.is_sorted = in_order(*self.pairs), True
        return self.pairs

    def has_any(self, wanted: U64) -> bool:
        """Whether there is a pair with one of these hashes."""
        hashes, _ = self.in_order()
        if not len(hashes):
            return False
        return bool(np.count_nonzero(hashes.take(hashes.searchsorted(wanted), mode="clip") == wanted))

    def hits(self, wanted: U64) -> Hits:
        """Every pair with one of these hashes, which are quickest found in ascending order."""
        hashes, refs = self.in_order()
        if not len(hashes):
            return NO_HITS
        low = hashes.searchsorted(wanted)
        # Most hashes are nowhere: one look at what stands there is cheaper than a second search.
        hit = (hashes.take(low, mode="clip") == wanted).nonzero()[0]
        if not len(hit):
            return NO_HITS
        counts = hashes.searchsorted(wanted[hit], "right") - low[hit]
        return np.repeat(hit, counts), refs[np.repeat(low[hit], counts) + _ranks(counts)]


def in_order(hashes: U64, refs: U64) -> Pairs:
    order = np.argsort(hashes)
    return hashes[order], refs[order]


def joined(parts: Sequence[Pairs]) -> Pairs:
    """The pairs of all parts, one part behind the other."""
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def merged(runs: Sequence[Run]) -> Pairs:
    return in_order(*joined([run.pairs for run in runs]))


def _ranks(counts: I64) -> I64:
    """0..count-1 for every count, one after another."""
    ends = np.cumsum(counts)
    ranks: I64 = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    return ranks
