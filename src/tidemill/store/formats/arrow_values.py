"""Some values of Arrow columns as Python has them, without Arrow's own way to them.

`take` and `to_pylist` cost the same for one value as for a thousand; a consumer is given some thirty messages
at a time, each of fourteen columns. So the columns of a batch are looked at once, and values are cut out of
their bytes. For columns without nulls, as those of messages are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.log.arrays import I64


class ArrowValues:
    """Columns of one batch, from which values are taken by row."""

    def __init__(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        self._columns = [_column(batch.column(name)) for name in names]

    def at(self, rows: I64) -> list[list[Any]]:
        """For each column, the values at these rows, in that order."""
        return [column.at(rows) for column in self._columns]


class _Numbers:
    def __init__(self, column: Any) -> None:
        self._numbers = column.to_numpy(zero_copy_only=True)

    def at(self, rows: I64) -> list[Any]:
        numbers: list[Any] = self._numbers[rows].tolist()
        return numbers


class _Texts:
    """A column of texts or, where they are not decoded, of bytes."""

    def __init__(self, column: Any, *, is_decoded: bool) -> None:
        _, offsets, data = column.buffers()
        self._ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
        self._data = memoryview(data) if data is not None else memoryview(b"")
        self._is_decoded = is_decoded
        self._is_empty = self._ends[0] == self._ends[-1]

    def at(self, rows: I64) -> list[Any]:
        if self._is_empty:
            return ["" if self._is_decoded else b""] * len(rows)
        data = self._data
        spans = zip(self._ends[rows].tolist(), self._ends[rows + 1].tolist(), strict=True)
        if self._is_decoded:
            return [str(data[start:end], "utf-8") for start, end in spans]
        return [bytes(data[start:end]) for start, end in spans]


def _column(column: Any) -> _Numbers | _Texts:
    is_text = pa.types.is_string(column.type)
    if is_text or pa.types.is_binary(column.type):
        return _Texts(column, is_decoded=is_text)
    return _Numbers(column)
