"""The check of a fixed-width row: 32 bits that say whether a row of a derived table is what was written
there.

A row is a whole number of 32-bit words, and its `check` is the last one. Each other word is multiplied by a
64-bit weight of its own and the products are added up, together with a *salt* made from the row's position,
all modulo 2**64. The check is the upper half of that sum: multilinear hashing. (Words of 64 bits would be
quicker and weak: a flip of bit 63 in two of them would cancel out, whatever the weights.)

What it finds: every one or two changed bits, and with a chance of one in 2**32 to miss it any other damage:
zeros, a row that stands where another belongs, bytes of something else. A row of zeros never passes.

Pure: arrays in, arrays out. Little-endian, as the rows are.
"""

from __future__ import annotations

import struct
from operator import mul

import numpy as np

from tidemill.log.arrays import I64, U64, Flags, Rows

_WORD = np.dtype("<u4")
_HALF_BITS = 32
_HALF = np.uint64(_HALF_BITS)
# Chosen so that no two flipped bits cancel out (a test goes through them all). The last is that of the check:
# it takes the check away from the upper half of the sum, which is then zero.
_WEIGHTS: U64 = np.array(
    [
        0x5C14AD08154F81F7,
        0x8A47BC8BA2B61385,
        0x63168F968A880411,
        0x0CE35A67C8DD9279,
        0x4507B429828DE73B,
        0xA36D850460C2CC25,
        0x221CEBCBED8D4DBB,
        0x0BE1CD07FDCE25C7,
        0xBEAD9F73C6940A2F,
        0xFBA1220F197863E5,
        0x8736E511A8D555C5,
        0xFFFFFFFF00000000,
    ],
    np.uint64,
)
_POSITION_WEIGHT = 0x8EBC6AF09C88C6E3
_TABLE_WEIGHT = 0x589965CC75374CC3
_ALL = (1 << 64) - 1
# Set in every salt, so that the sum of a row of zeros is not zero.
_TOP = 1 << 63
# So many rows are summed at a time: what is made on the way stays in the cache.
_PART_ROWS = 4096

Salts = U64 | np.uint64  # one for each row, or one for all

_NUMBERS = _WEIGHTS.tolist()
_ONE_ROW = {4 * words: (struct.Struct(f"<{words}I").unpack, _NUMBERS[-words:]) for words in range(1, 13)}


def salts_of(positions: I64, tables: I64 | int = 0) -> Salts:
    """The salts of rows at these positions of a table, or each of a table of its own."""
    if len(positions) == 1 and isinstance(tables, int):
        return np.uint64((int(positions[0]) * _POSITION_WEIGHT + tables * _TABLE_WEIGHT) & _ALL | _TOP)
    salts: U64 = positions.astype(np.uint64)
    salts *= np.uint64(_POSITION_WEIGHT)
    if not isinstance(tables, int):
        salts += tables.astype(np.uint64) * np.uint64(_TABLE_WEIGHT)
    elif tables:
        salts += np.uint64(tables * _TABLE_WEIGHT & _ALL)
    salts |= np.uint64(_TOP)
    return salts


def _upper_sum_of_one(row: Rows, salts: Salts) -> int:
    """The same of one row, in Python's numbers: NumPy takes three times as long."""
    read, weights = _ONE_ROW[row.itemsize]
    total: int = sum(map(mul, read(row.tobytes()), weights), int(salts.item()))
    return (total & _ALL) >> _HALF_BITS


def _upper_sums(rows: Rows, salts: Salts) -> U64:
    words = rows.dtype.itemsize // _WORD.itemsize
    sums: U64 = np.empty(len(rows), np.uint64)
    table, weights = np.ascontiguousarray(rows).view(_WORD).reshape(len(rows), words), _WEIGHTS[-words:]
    for start in range(0, len(rows), _PART_ROWS):
        np.matmul(table[start : start + _PART_ROWS], weights, out=sums[start : start + _PART_ROWS])
    sums += salts
    sums >>= _HALF
    return sums


def seal(rows: Rows, salts: Salts) -> None:
    """Give every row its check."""
    rows["check"] = 0
    rows["check"] = _upper_sum_of_one(rows, salts) if len(rows) == 1 else _upper_sums(rows, salts)


def sealed_mask(rows: Rows, salts: Salts) -> Flags:
    """Which rows are what was written."""
    if len(rows) == 1:
        return np.array([not _upper_sum_of_one(rows, salts)])
    mask: Flags = _upper_sums(rows, salts) == 0
    return mask
