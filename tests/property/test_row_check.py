"""The check of a row finds every flipped bit, zeros, and rows that stand where others belong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.row_check import salts_of, seal, sealed_mask

SEQS = st.integers(0, (1 << 47) - 1)
TABLES = st.integers(0, (1 << 48) - 1)


def rows_of(dtype, seed, count, first, table):
    random = np.random.default_rng(seed)
    rows = np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()
    seal(rows, salts_of(np.arange(first, first + count), table))
    return rows


@pytest.mark.parametrize("dtype", [ENTRY, QUEUE_ROW], ids=["entry", "queue"])
@given(seed=st.integers(0, 1 << 30), first=SEQS, table=TABLES)
@settings(max_examples=examples(50), deadline=None)
def test_every_flipped_bit_is_found(dtype, seed, first, table):
    (row,) = rows_of(dtype, seed, 1, first, table)[:1]
    bits = dtype.itemsize * 8
    flipped = np.repeat(np.frombuffer(row.tobytes(), np.uint8)[None], bits, axis=0).copy()
    flipped[np.arange(bits), np.arange(bits) // 8] ^= (1 << (np.arange(bits) % 8)).astype(np.uint8)
    rows = flipped.reshape(-1).view(dtype)
    salts = salts_of(np.array([first]), table)
    assert sealed_mask(np.array([row], dtype), salts).all()
    assert not sealed_mask(rows, salts).any()


@pytest.mark.parametrize("dtype", [ENTRY, QUEUE_ROW], ids=["entry", "queue"])
def test_every_pair_of_flipped_bits_is_found(dtype):
    (row,) = rows_of(dtype, 7, 1, 41, 3)
    salts = salts_of(np.array([41]), 3)
    bits = dtype.itemsize * 8
    single = np.zeros((bits, dtype.itemsize), np.uint8)
    single[np.arange(bits), np.arange(bits) // 8] = 1 << (np.arange(bits) % 8)
    content = np.frombuffer(row.tobytes(), np.uint8)
    for bit in range(bits - 1):
        flipped = content ^ single[bit] ^ single[bit + 1 :]
        assert not sealed_mask(np.ascontiguousarray(flipped).reshape(-1).view(dtype), salts).any(), bit


@pytest.mark.parametrize("dtype", [ENTRY, QUEUE_ROW], ids=["entry", "queue"])
@pytest.mark.parametrize("pattern", [1 << 63, 1 << 31, 1 << 63 | 1 << 31, 1 << 62, 0xFF << 56, 1])
def test_the_same_bits_flipped_in_every_word_are_found(dtype, pattern):
    rows = rows_of(dtype, 7, 100, 41, 3)
    words = rows.view("<u8").copy() ^ np.uint64(pattern)
    assert not sealed_mask(words.view(dtype), salts_of(np.arange(41, 141), 3)).any()


@pytest.mark.parametrize("dtype", [ENTRY, QUEUE_ROW], ids=["entry", "queue"])
@given(seed=st.integers(0, 1 << 30), first=SEQS, table=TABLES, count=st.integers(1, 40))
@settings(max_examples=examples(50), deadline=None)
def test_single_rows_many_rows_and_many_tables_agree(dtype, seed, first, table, count):
    rows = rows_of(dtype, seed, count, first, table)
    positions = np.arange(first, first + count)
    assert sealed_mask(rows, salts_of(positions, table)).all()
    assert sealed_mask(rows, salts_of(positions, np.full(count, table))).all()
    for index in range(count):
        assert sealed_mask(rows[index : index + 1], salts_of(positions[index : index + 1], table)).all()


@pytest.mark.parametrize("dtype", [ENTRY, QUEUE_ROW], ids=["entry", "queue"])
@given(first=SEQS, table=TABLES)
@settings(max_examples=examples(50), deadline=None)
def test_zeros_never_pass(dtype, first, table):
    rows = np.zeros(1000, dtype)
    assert not sealed_mask(rows, salts_of(np.arange(first, first + 1000), table)).any()


@pytest.mark.parametrize("dtype", [ENTRY, QUEUE_ROW], ids=["entry", "queue"])
@given(seed=st.integers(0, 1 << 30), first=SEQS, table=TABLES)
@settings(max_examples=examples(50), deadline=None)
def test_a_row_in_the_place_of_another_is_found(dtype, seed, first, table):
    rows = rows_of(dtype, seed, 100, first, table)
    positions = np.arange(first, first + 100)
    assert not sealed_mask(rows[::-1].copy(), salts_of(positions, table)).any()
    assert not sealed_mask(np.roll(rows, 1), salts_of(positions, table)).any()
    assert not sealed_mask(rows, salts_of(positions, table + 1)).any()
