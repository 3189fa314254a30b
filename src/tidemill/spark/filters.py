"""Converts filters in a query's plan to conditions for the broker (`where` of docs/flight.md).

Spark applies every filter again, so a condition need only let through all that the filter would; a filter
without such a condition is left out. Spark's times have microseconds and the broker's milliseconds: a bound
between two of them is moved to the one that leaves the same rows.

They are taken from the plan and given to the source as an option, once. PySpark has a way to pass filters to
a Python source (`pushFilters`), but in 4.3 it keeps those of the last query with the loaded table: the next
query over it, or the other side of a join, gets its rows by the wrong filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

_COMPARISONS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_TEXT_TESTS = {
    "StringStartsWith": "starts-with",
    "StringEndsWith": "ends-with",
    "StringContains": "contains",
}
_NULL_TESTS = {"IsNull": "is-null", "IsNotNull": "not-null"}
_VALUES_MAX = 10_000
_WHOLE_MAX = 1 << 62
_TRANSLATOR = "org.apache.spark.sql.execution.datasources.DataSourceStrategy$"
# Operators that are true for the same rows when a bound between two milliseconds is rounded this way.
_ROUNDED_UP = {"<", ">="}
_ROUNDED_DOWN = {"<=", ">"}

Condition = list[Any]  # column, operator, value


def conditions_of(jvm: Any, expression: Any, schema: StructType) -> list[Condition]:
    """Conditions that are true of every row of which a Catalyst expression is true."""
    translator = getattr(getattr(jvm, _TRANSLATOR), "MODULE$")
    found: list[Condition] = []
    for part in _conjuncts(expression):
        option = translator.translateFilter(part, True)
        condition = _condition(option.get(), schema) if option.isDefined() else None
        if condition is not None and condition not in found:
            found.append(condition)
    # Spark adds "is not null" to every comparison, which implies it.
    compared = {column for column, operator, _ in found if operator not in _NULL_TESTS.values()}
    return [c for c in found if c[1] != "not-null" or c[0] not in compared]


def _conjuncts(expression: Any) -> Iterator[Any]:
    if expression.nodeName() == "And":
        yield from _conjuncts(expression.left())
        yield from _conjuncts(expression.right())
    else:
        yield expression


def _condition(given: Any, schema: StructType) -> Condition | None:
    name = given.getClass().getSimpleName()
    if name == "Not":
        same = _condition(given.child(), schema)
        return [same[0], "!=", same[2]] if same is not None and same[1] == "=" else None
    if name not in {*_COMPARISONS, *_TEXT_TESTS, *_NULL_TESTS, "In"}:
        return None
    column = given.attribute()
    if column not in schema.fieldNames():
        return None
    kind = schema[column].dataType
    if not isinstance(kind, StringType | IntegerType | LongType | TimestampType):
        return None
    if name in _NULL_TESTS:
        return [column, _NULL_TESTS[name], None]
    if name == "In":
        each = [_compared(column, kind, "=", value) for value in given.values()]
        if len(each) > _VALUES_MAX or any(one is None for one in each):
            return None
        return [column, "in", [one[2] for one in each if one is not None]]
    operator = _COMPARISONS.get(name) or _TEXT_TESTS[name]
    return _compared(column, kind, operator, given.value())


def _compared(column: str, kind: DataType, operator: str, value: Any) -> Condition | None:
    if isinstance(kind, StringType):
        return [column, operator, value] if type(value) is str else None
    if isinstance(kind, TimestampType):
        value = _ms(operator, value)
    is_whole = type(value) is int and -_WHOLE_MAX < value < _WHOLE_MAX
    return [column, operator, value] if is_whole else None


def _ms(operator: str, moment: Any) -> int | None:
    """The millisecond that stands for a Java timestamp in a comparison; None if there is none."""
    if not hasattr(moment, "getNanos"):
        return None
    us: int = moment.getTime() // 1000 * 1_000_000 + moment.getNanos() // 1000
    if us % 1000 and operator not in _ROUNDED_UP | _ROUNDED_DOWN:
        return None
    return -(-us // 1000) if operator in _ROUNDED_UP else us // 1000
