"""Names of the array types that modules pass to each other, and copies of structured rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[Any]  # a structured array


def all_of(value: int, count: int) -> I64:
    """So many times the value: `np.full` for few of them, in a third of its time."""
    made = np.empty(count, np.int64)
    made.fill(value)
    return made


def each_of(values: Any, count: int) -> Any:
    """A column: the values, or so many times the one number that stands for all of them."""
    return all_of(values, count) if isinstance(values, int) else values


_FIRST_NUMBERS = np.arange(1 << 13)
_FIRST_NUMBERS.flags.writeable = False


def numbers_to(end: int) -> I64:
    """The numbers from 0 on, below `end`; not to be changed, for they are shared."""
    return _FIRST_NUMBERS[:end] if end <= len(_FIRST_NUMBERS) else np.arange(end)


# NumPy copies structured rows field by field. As plain bytes the same takes a twentieth of the time.


def plain(rows: Rows) -> Rows:
    """Rows as bytes without field names."""
    return rows.view(np.dtype((np.void, rows.dtype.itemsize)))


def picked(rows: Rows, which: I64 | Flags) -> Rows:
    """A copy of some rows, by index or by mask."""
    indexes = np.flatnonzero(which) if which.dtype == np.bool_ else which
    chosen: Rows = plain(rows).take(indexes).view(rows.dtype)
    return chosen


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part behind the other; at least one part, all of one type."""
    return np.concatenate([plain(part) for part in parts]).view(parts[0].dtype)
