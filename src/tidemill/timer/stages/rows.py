"""Moving structured rows as plain bytes.

NumPy copies a structured row field by field when it is chosen by an index or joined, ten times slower than
the same bytes without field names. These two do the latter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]


def chosen_rows(rows: Rows, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Rows:
    """A copy of the rows that a mask or indexes choose."""
    return _as_bytes(rows)[chosen].view(rows.dtype)


def joined_rows(first: Rows, second: Rows) -> Rows:
    """Both, one after the other."""
    assert first.dtype == second.dtype
    return np.concatenate((_as_bytes(first), _as_bytes(second))).view(first.dtype)


def _as_bytes(rows: Rows) -> Rows:
    return rows.view(np.dtype((np.void, rows.dtype.itemsize)))
