"""`tidemill sql`: a query over pending messages, history and topics, run by Spark.

Owns how an answer is printed: as a table for people, as JSON lines or CSV for programs. Spark's own output
goes to a file that is removed with the command; an error is one line.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import usage
from tidemill.cli.child_processes import end_in_order
from tidemill.cli.connecting import BrokerAddress, EndpointOption, JsonOption, broker_of, connect
from tidemill.cli.output import console
from tidemill.core.durations import format_time
from tidemill.core.errors import StorageError
from tidemill.server.process.pipeline_command import why_not_spark

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 100
_CELL_CHARS_MAX = 200


def sql(
    query: Annotated[str, typer.Argument(help="SELECT … FROM pending, history or messages.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
    is_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header line.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"At most this many rows. [{_SHOWN} as a table, else all]")
    ] = None,
) -> int:
    """Run SQL over the tables pending, history and messages with Spark."""
    if is_json and is_csv:
        raise usage("give only one of --json and --csv")
    end_in_order()
    if problem := why_not_spark(""):
        raise StorageError(f"a query needs Spark, and {problem[0].lower()}{problem[1:]}")
    with connect(endpoint) as client:
        client.tables.schema({"table": "pending"})  # reports an unreachable broker before Spark is started
    is_table = not (is_json or is_csv)
    shown = limit or (_SHOWN if is_table else None)
    table = _answer(query, broker_of(endpoint), None if shown is None else shown + 1)
    is_cut = shown is not None and table.num_rows > shown
    table = table.slice(0, shown) if is_cut else table
    if is_json:
        print_json(table)
    elif is_csv:
        print_csv(table)
    else:
        print_table(table)
    if is_cut and is_table:
        print(f"the first {shown} rows; see more with --limit, all with --json or --csv")
    return 0


def _answer(query: str, broker: BrokerAddress, rows_max: int | None) -> pa.Table:
    """The result from Spark, as an Arrow table."""
    from tidemill.spark.session import ask  # here, because Spark is optional and slow to import

    options = {"endpoint": broker.endpoint, "insecure": str(broker.is_insecure).lower()}
    options |= {name: value for name in ("token", "ca") if (value := getattr(broker, name))}
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-sql-", ignore_cleanup_errors=True) as scratch,
        _waiting(),
    ):
        return ask(query, options, rows_max, Path(scratch) / "spark.log")


@contextmanager
def _waiting() -> Iterator[None]:
    """A spinner on standard error while Spark works; nothing where it is not a terminal."""
    # On a descriptor of its own: standard error is turned away from the terminal meanwhile.
    with os.fdopen(os.dup(2), "w", buffering=1) as errors:
        screen = Console(file=errors)
        with screen.status("Spark runs the query …") if screen.is_terminal else nullcontext():
            yield


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows of plain values: times as ISO 8601, bytes as text where they are."""
    names = table.column_names
    for batch in table.to_batches():
        columns = [_plain(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _plain(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        ms = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        return [None if value is None else format_time(value) for value in ms.to_pylist()]
    return [_value(value) for value in column.to_pylist()]


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, str | int | float | bool | list | dict) else str(value)


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def print_json(table: pa.Table) -> None:
    """One object per line."""
    for row in _rows(table):
        print(json.dumps(row, ensure_ascii=False))


def print_csv(table: pa.Table) -> None:
    """A header, and a line for each row."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows([_csv_cell(value) for value in row.values()] for row in _rows(table))


def print_table(table: pa.Table) -> None:
    """A table for people."""
    import pyarrow as pa

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for field in table.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        grid.add_column(field.name, justify="right" if is_number else "left", overflow="fold")
    for row in _rows(table):
        grid.add_row(*(_cell(value) for value in row.values()))
    console().print(grid)
    if not table.num_rows:
        print("no rows")


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", "dim")
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(_csv_cell(value))
    return Text(text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 1] + "…")
