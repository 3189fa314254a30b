"""Putting rows in order by one number, several times faster than NumPy's own stable sort.

Invariant: rows with equal values keep their order.
"""

from __future__ import annotations

import numpy as np

from tidemill.log.arrays import I64

_KEY_BITS = 63


def order_by(values: I64) -> tuple[I64, I64]:
    """Which row comes when, by value and then by place; and the values in that order."""
    if not len(values):
        return np.empty(0, np.int64), values
    lowest = int(values.min())
    row_bits = len(values).bit_length()
    if (int(values.max()) - lowest).bit_length() + row_bits > _KEY_BITS:
        order = np.argsort(values, kind="stable")
        return order, values[order]
    # Value and row fit into one integer, and sorting that is several times faster than ordering the rows.
    keys = ((values - lowest) << row_bits) | np.arange(len(values), dtype=np.int64)
    keys.sort()
    order = keys & ((1 << row_bits) - 1)
    keys >>= row_bits
    keys += lowest
    return order, keys
