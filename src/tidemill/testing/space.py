"""How much disk a file takes, block by block, without asking the file system.

A real file system may allocate late and in odd sizes; a test of a full disk needs the same answer each time.

Invariant: blocks below `_prefix_blocks` are all allocated; `_islands` holds the numbers of those beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.log.arrays import I64

BLOCK_BYTES = 4096


class FileSpace:
    """The allocated blocks of one file."""

    def __init__(self, prefix_bytes: int = 0) -> None:
        self._prefix_blocks = _blocks(prefix_bytes)
        self._islands: set[int] = set()

    def total_bytes(self) -> int:
        return (self._prefix_blocks + len(self._islands)) * BLOCK_BYTES

    def missing_bytes(self, offset: int, length: int) -> int:
        """What must still be allocated to have space behind `[offset, offset + length)`."""
        return len(self._missing(offset, length)) * BLOCK_BYTES

    def fitting_bytes(self, offset: int, length: int, free_bytes: int) -> int:
        """How many bytes from `offset` have space behind them when only `free_bytes` more can be had."""
        missing = self._missing(offset, length)
        affordable = max(0, free_bytes) // BLOCK_BYTES
        if len(missing) <= affordable:
            return length
        return max(0, missing[affordable] * BLOCK_BYTES - offset)

    def missing_for_rows(self, offsets: I64, row_bytes: int) -> list[int]:
        """The blocks to allocate for rows of `row_bytes` (at most one block long) at `offsets`."""
        assert row_bytes <= BLOCK_BYTES, "a row must not span more than two blocks"
        ends = np.concatenate((offsets, offsets + (row_bytes - 1))) // BLOCK_BYTES
        blocks: list[int] = np.unique(ends[ends >= self._prefix_blocks]).tolist()
        return [block for block in blocks if block not in self._islands]

    def allocate(self, offset: int, length: int) -> None:
        self.allocate_blocks(self._missing(offset, length))

    def allocate_blocks(self, missing: Sequence[int]) -> None:
        if isinstance(missing, range) and missing and missing.start == self._prefix_blocks:
            self._prefix_blocks = missing.stop
        else:
            self._islands.update(missing)
        while self._prefix_blocks in self._islands:
            self._islands.remove(self._prefix_blocks)
            self._prefix_blocks += 1

    def cut(self, length: int) -> None:
        """Give back everything beyond `length`."""
        end = _blocks(length)
        self._prefix_blocks = min(self._prefix_blocks, end)
        self._islands = {block for block in self._islands if block < end}

    def _missing(self, offset: int, length: int) -> Sequence[int]:
        if length <= 0:
            return range(0)
        wanted = range(max(offset // BLOCK_BYTES, self._prefix_blocks), _blocks(offset + length))
        if not self._islands:
            return wanted
        return [block for block in wanted if block not in self._islands]


def _blocks(length: int) -> int:
    return -(-length // BLOCK_BYTES)
