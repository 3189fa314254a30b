"""A table of the broker as a batch source: rows and columns, partitions, and Spark's Arrow batches.

Owns a request's way: the broker cuts the table into parts, and each task streams one. PySpark does not pass a
Python source the columns of a query, and its way to pass filters is unreliable (see `filters.py`); so both
are options, `columns` (or a schema) and `where`. `query.py` derives them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemill.core.errors import RequestError
from tidemill.spark.options import Place

ALL_COLUMNS = "*"
_ALL = [ALL_COLUMNS]


class TicketPartition(InputPartition):
    """One part of a table: a ticket of the broker's. Picklable."""

    def __init__(self, ticket: bytes) -> None:
        super().__init__(ticket)
        self.ticket = ticket


class TableReader(DataSourceReader):
    """Plans on the driver, reads on the workers."""

    def __init__(self, place: Place, request: dict[str, Any], schema: StructType, parts: int) -> None:
        self._place = place
        self._request = request | {"columns": schema.fieldNames()}
        self._schema = schema
        self._parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        with self._place.connect(is_planning=True) as client:
            tickets = client.tables.parts(self._request, self._parts)
        return [TicketPartition(ticket) for ticket in tickets]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TicketPartition)
        yield from spark_batches(self._place, partition.ticket, self._schema)


def table_columns(place: Place, table: str, names: Sequence[str]) -> StructType:
    """The named columns of a table as Spark's; without names those most people want, with `*` all."""
    with place.connect(is_planning=True) as client:
        schema = client.tables.schema({"table": table, "columns": _ALL if names else None})
    if not names or ALL_COLUMNS in names:
        return from_arrow_schema(schema)
    for name in names:
        if name not in schema.names:
            raise RequestError(f"unknown column {name!r}; {table} has {', '.join(schema.names)}")
    return from_arrow_schema(pa.schema([schema.field(name) for name in names]))


def check_schema(place: Place, table: str, schema: StructType) -> None:
    """`RequestError` unless the columns and types of a given schema are those of the table."""
    known = {field.name: field.dataType for field in table_columns(place, table, _ALL)}
    for field in schema.fields:
        if field.name not in known:
            raise RequestError(f"unknown column {field.name!r}; {table} has {', '.join(known)}")
        if field.dataType != known[field.name]:
            wanted = known[field.name].simpleString()
            raise RequestError(
                f"column {field.name!r} of {table} is {wanted}, not {field.dataType.simpleString()}; "
                "read it as it is and cast it"
            )


def spark_batches(place: Place, ticket: bytes, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The batches of a ticket with the very types that Spark expects."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    with place.connect() as client:
        for batch in client.tables.stream(ticket):
            columns = [batch.column(field.name).cast(field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)
