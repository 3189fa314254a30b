"""Spark's filters as conditions for the broker (`where` of docs/flight.md), where they mean the same.

A filter that is translated is the broker's to apply, and Spark does not look again; so whatever is not
surely the same is left to Spark. Spark's times have microseconds and the broker's milliseconds: a bound
between two milliseconds is moved to the one that leaves the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_TEXT_TESTS: dict[type[Filter], str] = {
    StringStartsWith: "starts-with",
    StringEndsWith: "ends-with",
    StringContains: "contains",
}
_VALUES_MAX = 10_000
_CONDITIONS_MAX = 64
_WHOLE_MAX = 1 << 62
# Operators that are true for the same rows when a bound between two milliseconds is rounded this way.
_ROUNDED_UP = {"<", ">="}
_ROUNDED_DOWN = {"<=", ">"}

Condition = list[Any]  # column, operator, value


def divided(filters: Iterable[Filter], schema: StructType) -> tuple[list[Condition], list[Filter]]:
    """The conditions that the broker applies, and the filters that are left to Spark."""
    conditions: list[Condition] = []
    left: list[Filter] = []
    for given in filters:
        condition = _condition(given, schema)
        if condition is None or len(conditions) >= _CONDITIONS_MAX:
            left.append(given)
        else:
            conditions.append(condition)
    # Spark adds "is not null" to every comparison, which says so already.
    compared = {column for column, operator, *_ in conditions if operator not in ("is-null", "not-null")}
    return [c for c in conditions if c[1] != "not-null" or c[0] not in compared], left


def _condition(given: Filter, schema: StructType) -> Condition | None:
    if isinstance(given, Not) and isinstance(given.child, EqualTo):
        same = _condition(given.child, schema)
        return None if same is None else [same[0], "!=", same[2]]
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.fieldNames():
        return None
    column = attribute[0]
    kind = schema[column].dataType
    if not isinstance(kind, StringType | IntegerType | LongType | TimestampType):
        return None
    if isinstance(given, IsNull | IsNotNull):
        return [column, "is-null" if isinstance(given, IsNull) else "not-null", None]
    if type(given) in _TEXT_TESTS and isinstance(kind, StringType):
        return _compared(column, kind, _TEXT_TESTS[type(given)], getattr(given, "value", None))
    if type(given) in _COMPARISONS:
        return _compared(column, kind, _COMPARISONS[type(given)], getattr(given, "value", None))
    if isinstance(given, In) and len(given.value) <= _VALUES_MAX:
        each = [_compared(column, kind, "=", value) for value in given.value]
        if all(one is not None for one in each):
            return [column, "in", [one[2] for one in each if one is not None]]
    return None


def _compared(column: str, kind: DataType, operator: str, value: Any) -> Condition | None:
    if isinstance(kind, StringType):
        return [column, operator, value] if type(value) is str else None
    if isinstance(kind, TimestampType):
        value = _ms(operator, value)
    is_whole = type(value) is int and -_WHOLE_MAX < value < _WHOLE_MAX
    return [column, operator, value] if is_whole else None


def _ms(operator: str, moment: Any) -> int | None:
    """The millisecond that stands for a moment in a comparison; None if there is none."""
    if getattr(moment, "tzinfo", None) is None:
        return None
    us: int = round(moment.timestamp() * 1_000_000)
    if us % 1000 and operator not in _ROUNDED_UP | _ROUNDED_DOWN:
        return None
    return -(-us // 1000) if operator in _ROUNDED_UP else us // 1000
