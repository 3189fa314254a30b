"""Conditions on the columns of a table, as a reader's query brings them: `["lateness_ms", ">", 50]`.

Owns what the operators mean and which values they take. A row is kept if every condition is true of it; a
null makes a condition neither true nor false, so the row goes, as in SQL. Times are Unix milliseconds. Pure
functions over Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import RequestError
from tidemill.log.arrays import Flags

FOREVER = 1 << 62

_COMPARISONS: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_TEXT_TESTS: dict[str, Callable[..., pa.Array]] = {
    "starts-with": pc.starts_with,
    "ends-with": pc.ends_with,
    "contains": pc.match_substring,
}
_NULL_TESTS = ("is-null", "not-null")
_VALUES_MAX = 10_000
OPERATORS = (*_COMPARISONS, "in", *_TEXT_TESTS, *_NULL_TESTS)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on one column."""

    column: str
    operator: str
    value: Any = None

    def check(self, schema: pa.Schema) -> None:
        """`RequestError` unless this can be asked of a table with this schema."""
        if self.column not in schema.names:
            raise RequestError(f"unknown column {self.column!r} in where; there are {schema.names}")
        if self.operator not in OPERATORS:
            raise RequestError(
                f"unknown operator {self.operator!r} in where; known are {', '.join(OPERATORS)}"
            )
        kind = schema.field(self.column).type
        if pa.types.is_binary(kind):
            raise RequestError(f"column {self.column!r} holds bytes, which cannot be compared")
        if self.operator in _NULL_TESTS:
            return
        is_list = self.operator == "in"
        if is_list and not (isinstance(self.value, list | tuple) and len(self.value) <= _VALUES_MAX):
            raise RequestError(f"`in` needs a list of at most {_VALUES_MAX} values")
        is_text = pa.types.is_string(kind)
        if self.operator in _TEXT_TESTS and not is_text:
            raise RequestError(f"{self.operator} is for texts, and column {self.column!r} holds none")
        for value in self.value if is_list else [self.value]:
            if not (type(value) is str if is_text else _is_whole(value)):
                what = "a text" if is_text else "a whole number (of a time: Unix milliseconds)"
                raise RequestError(f"column {self.column!r} is compared with {what}, not with {value!r}")

    def mask(self, column: pa.Array) -> Flags:
        """Which rows it is true of."""
        if self.operator in _NULL_TESTS:
            answer = column.is_null() if self.operator == "is-null" else column.is_valid()
        elif self.operator in _TEXT_TESTS:
            answer = _TEXT_TESTS[self.operator](column, self.value)
        else:
            if not pa.types.is_string(column.type):
                column = column.cast(pa.int64())
            if self.operator == "in":
                values = pa.array(list(self.value), column.type)
                answer = pc.and_(pc.is_in(column, value_set=values), column.is_valid())
            else:
                answer = _COMPARISONS[self.operator](column, pa.scalar(self.value, column.type))
        flags: Flags = answer.fill_null(False).to_numpy(zero_copy_only=False)
        return flags


def _is_whole(value: Any) -> bool:
    return type(value) is int and -FOREVER <= value <= FOREVER


def all_true(
    conditions: Iterable[Condition], columns: dict[str, Callable[[], pa.Array]], count: int
) -> Flags:
    """Which of `count` rows all the conditions are true of."""
    kept = np.ones(count, np.bool_)
    for condition in conditions:
        kept &= condition.mask(columns[condition.column]())
    return kept


def bounds(conditions: Iterable[Condition], column: str) -> tuple[int, int]:
    """The range `[low, high)` of whole numbers that the conditions leave a column, to read less."""
    low, high = -FOREVER, FOREVER
    for condition in conditions:
        if condition.column == column and condition.operator in ("=", "<", "<=", ">", ">="):
            if condition.operator in ("=", ">="):
                low = max(low, condition.value)
            if condition.operator == ">":
                low = max(low, condition.value + 1)
            if condition.operator in ("=", "<="):
                high = min(high, condition.value + 1)
            if condition.operator == "<":
                high = min(high, condition.value)
    return low, high


def only_value(conditions: Iterable[Condition], column: str) -> Any | None:
    """The one value that the conditions leave a column; None if there may be others."""
    return next((c.value for c in conditions if c.column == column and c.operator == "="), None)
