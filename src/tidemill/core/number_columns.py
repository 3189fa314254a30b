"""Arrow columns of moments, delays and levels as whole numbers: one conversion for both ends of Flight.

A moment is a timestamp, a date (its midnight in UTC) or Unix milliseconds; a delay is a duration or
milliseconds; a level is a number. A part of a millisecond counts as a whole one, so that no message is early.
A type that is no number by itself (a time of day, a boolean), or that is for the other kind of column, is
refused. NaN is taken for null, as pandas means it.

The one module of this layer that needs pyarrow: imported where there is a table, and not before.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import RequestError

_LEVEL = "level"
_SPANS = ("delay_ms", "jitter_ms")
_WANTED = {
    **dict.fromkeys(_SPANS, "durations, or milliseconds as whole numbers"),
    _LEVEL: "whole numbers",
}
_MOMENTS = "timestamps, dates, or Unix milliseconds as whole numbers"
# How many of a unit make a millisecond, where it is shorter than one.
_PER_MS = {"us": 1_000, "ns": 1_000_000}
_FAR_S = 1 << 52  # further off than anything is allowed to be; so many seconds are still a number in ms


def check_type(name: str, kind: pa.DataType) -> None:
    """`RequestError` if no value of this type can be what the column is for."""
    if not (_is_number(kind) or is_temporal(name, kind)):
        wanted = _WANTED.get(name, _MOMENTS)
        raise RequestError(f"column {name} must hold {wanted}; it is of type {_plain_type(kind)}")


def is_temporal(name: str, kind: pa.DataType) -> bool:
    """Whether the type has a unit of its own, and is one that the column may have."""
    plain = _plain_type(kind)
    if name in _SPANS:
        return bool(pa.types.is_duration(plain))
    return name != _LEVEL and bool(pa.types.is_timestamp(plain) or pa.types.is_date(plain))


def whole_numbers(name: str, column: pa.Array) -> pa.Array:
    """The column as int64 with nulls: milliseconds, or levels."""
    check_type(name, column.type)
    if pa.types.is_int64(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if is_temporal(name, column.type):
            return _temporal_ms(column)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        # Half a level is none; half a millisecond must not make a message early.
        return (column if name == _LEVEL else _rounded_up(column)).cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RequestError(f"column {name} must hold {_WANTED.get(name, _MOMENTS)}: {error}") from None


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    plain = _plain_type(kind)
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)
    is_numeric = pa.types.is_integer(plain) or pa.types.is_floating(plain) or pa.types.is_decimal(plain)
    return bool(is_text or is_numeric or pa.types.is_null(plain))  # a text may be of digits


def _temporal_ms(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    unit, given = column.type.unit, column.cast(pa.int64())
    if unit == "s":
        bounded = pc.max_element_wise(given, -_FAR_S, skip_nulls=False)
        return pc.multiply(pc.min_element_wise(bounded, _FAR_S, skip_nulls=False), 1_000)
    if unit not in _PER_MS:
        return given
    # Arrow divides towards zero, which is up already for what is before the epoch.
    whole = pc.divide(given, _PER_MS[unit])
    rest = pc.subtract(given, pc.multiply(whole, _PER_MS[unit]))
    return pc.add(whole, pc.greater(rest, 0).cast(pa.int64()))


def _rounded_up(column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return pc.ceil(column)
    return column
