"""The space of a file, block by block."""

from __future__ import annotations

import numpy as np

from tidemill.testing.space import BLOCK_BYTES, FileSpace


def test_a_write_takes_whole_blocks_once() -> None:
    space = FileSpace()
    space.allocate(0, 1)
    space.allocate(10, 100)
    assert space.total_bytes() == BLOCK_BYTES
    assert space.missing_bytes(BLOCK_BYTES - 1, 2) == BLOCK_BYTES


def test_an_island_is_joined_when_the_gap_is_filled() -> None:
    space = FileSpace()
    space.allocate(3 * BLOCK_BYTES, 10)
    assert space.total_bytes() == BLOCK_BYTES
    assert space.missing_bytes(0, 4 * BLOCK_BYTES) == 3 * BLOCK_BYTES
    space.allocate(0, 4 * BLOCK_BYTES)
    assert space.total_bytes() == 4 * BLOCK_BYTES
    assert space.missing_bytes(0, 4 * BLOCK_BYTES) == 0


def test_cutting_gives_blocks_back() -> None:
    space = FileSpace(2 * BLOCK_BYTES)
    space.allocate(9 * BLOCK_BYTES, 1)
    space.cut(BLOCK_BYTES + 1)
    assert space.total_bytes() == 2 * BLOCK_BYTES


def test_what_fits_ends_at_the_first_block_that_cannot_be_had() -> None:
    space = FileSpace(BLOCK_BYTES)
    assert space.fitting_bytes(100, 3 * BLOCK_BYTES, BLOCK_BYTES) == 2 * BLOCK_BYTES - 100
    assert space.fitting_bytes(100, 50, 0) == 50
    assert space.fitting_bytes(5 * BLOCK_BYTES, 10, -1) == 0


def test_rows_need_the_blocks_they_touch() -> None:
    space = FileSpace(BLOCK_BYTES)
    offsets = np.array([0, BLOCK_BYTES - 4, 7 * BLOCK_BYTES], np.int64)
    missing = space.missing_for_rows(offsets, 8)
    assert missing == [1, 7]
    space.allocate_blocks(missing)
    assert space.missing_for_rows(offsets, 8) == []
    assert space.total_bytes() == 3 * BLOCK_BYTES
