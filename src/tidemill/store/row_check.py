"""The check of a fixed-width row: 32 bits that say whether a row of a derived table is what was written
there.

A row is a whole number of 64-bit words, and its `check` is the upper half of the last one. Each word is
multiplied by an odd weight of its own and the products are added up, together with a *salt* made from the
row's position, all modulo 2**64. The check is chosen so that the upper half of that sum is zero. Verifying
takes one matrix product, about five nanoseconds a row.

What it finds: every changed bit, and with a chance of one in 2**32 to miss it any other damage: zeros, a
row that stands where another belongs, bytes of something else. A row of zeros never passes.

Pure: arrays in, arrays out. Little-endian, as the rows are.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64, U64, Flags, Rows

_WORD = np.dtype("<u8")
_WORD_BYTES = 8
_HALF = np.uint64(32)
# Odd and without a pattern. The last one ends in 32 ones: so a check c in the upper half of the last word
# adds -c to the upper half of the sum, whatever the other words are. Its upper half is even, or a flip of
# bit 31 could be hidden by a carry.
_WEIGHTS: U64 = np.array(
    [
        0x9E3779B97F4A7C15,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0xD6E8FEB86659FD93,
        0xA0761D6478BD642F,
        0xE7037ED0FFFFFFFF,
    ],
    np.uint64,
)
_POSITION_WEIGHT = 0x8EBC6AF09C88C6E3
_TABLE_WEIGHT = 0x589965CC75374CC3
_ALL = (1 << 64) - 1
# Set in every salt, so that the sum of a row of zeros is not zero.
_TOP = 1 << 63

Salts = U64 | np.uint64  # one for each row, or one for all


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


def _upper_sums(rows: Rows, salts: Salts) -> U64:
    words = rows.dtype.itemsize // _WORD_BYTES
    sums: U64 = np.ascontiguousarray(rows).view(_WORD).reshape(len(rows), words) @ _WEIGHTS[-words:]
    sums += salts
    sums >>= _HALF
    return sums


def seal(rows: Rows, salts: Salts) -> None:
    """Give every row its check."""
    rows["check"] = 0
    rows["check"] = _upper_sums(rows, salts)


def sealed_mask(rows: Rows, salts: Salts) -> Flags:
    """Which rows are what was written."""
    mask: Flags = _upper_sums(rows, salts) == 0
    return mask
