"""Names of the array types that modules pass to each other."""

from __future__ import annotations

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


def picked(rows: Rows, which: I64 | Flags) -> Rows:
    """A copy of some rows, by index or by mask. NumPy copies structured rows field by field; as plain bytes
    the same takes a twentieth of the time."""
    indexes = np.flatnonzero(which) if which.dtype == np.bool_ else which
    plain = rows.view(np.dtype((np.void, rows.dtype.itemsize)))
    chosen: Rows = plain.take(indexes).view(rows.dtype)
    return chosen
