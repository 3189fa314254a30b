"""The rows of a table, one by one: for a broker without the Flight endpoint, and for a batch that it refused.

Errors of the table as a whole (its columns, their types) are raised before the first row is read. A value
that cannot be read becomes a `RequestError`, the answer of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.core.errors import RequestError
from tidemill.core.table_columns import JITTER_COLUMN, TEXT_COLUMNS, TIME_COLUMNS, check_names

Row = Any  # a mapping of columns to values, or whatever the caller has put in its place


def rows_of(table: Any, topic: str | None) -> Iterator[Row]:
    """Each row of an Arrow table or batch, a pandas frame, or any iterable of mappings."""
    if hasattr(table, "to_batches"):  # an Arrow table, batch by batch so that it is never all in Python
        _check_arrow(table, topic)
        return (row for batch in table.to_batches() for row in _arrow_rows(batch))
    if hasattr(table, "to_pylist") and hasattr(table, "schema"):
        _check_arrow(table, topic)
        return _arrow_rows(table)
    if hasattr(table, "itertuples"):
        names = [str(name) for name in table.columns]
        if len(table):
            check_names(names, topic)
        return (dict(zip(names, values, strict=True)) for values in table.itertuples(index=False, name=None))
    if isinstance(table, Mapping | str | bytes) or not hasattr(table, "__iter__"):
        raise RequestError(
            f"a {type(table).__name__} is not a table; give an Arrow table, a pandas frame or a list of "
            "mappings"
        )
    return iter(table)


def _check_arrow(table: Any, topic: str | None) -> None:
    from tidemill.core.number_columns import check_type

    if table.num_rows:  # of an empty table nothing is sent, whatever its columns
        names: Sequence[str] = table.schema.names
        check_names(names, topic)
        for name in (*TIME_COLUMNS, JITTER_COLUMN, "level"):
            if name in names:
                check_type(name, table.schema.field(name).type)


def _arrow_rows(batch: Any) -> Iterator[Row]:
    names = batch.schema.names
    columns = [_values(name, batch.column(name)) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(name: str, column: Any) -> list[Any]:
    """A column as Python's values, read as the broker would read it."""
    from tidemill.core.number_columns import is_temporal, whole_numbers

    if name in (*TIME_COLUMNS, JITTER_COLUMN) and is_temporal(name, column.type):
        column = whole_numbers(name, column)
    elif name in TEXT_COLUMNS:
        column = as_texts(column)
    try:
        values: list[Any] = column.to_pylist()
    except ValueError:  # one of them is invalid Unicode, or too large for a Python value
        values = [_value(name, value) for value in column]
    return [_without_nulls(value) for value in values] if name == "properties" else values


def _without_nulls(properties: Any) -> Any:
    """An object's members; Arrow gives each row those of all rows, null where it had none."""
    if not isinstance(properties, Mapping):
        return properties
    return {name: value for name, value in properties.items() if value is not None}


def as_texts(column: Any) -> Any:
    """The column as text, as the broker would have it; as it is where it cannot be text."""
    import pyarrow as pa

    try:
        return column if column.type == pa.string() else column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _value(name: str, value: Any) -> Any:
    try:
        return value.as_py()
    except ValueError as error:
        return RequestError(f"{name} cannot be read: {error}")
