"""Whole tables through the broker's Flight endpoint: schedule, store, cancel. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidemill.client.send.drafts import drafts_of_table
from tidemill.client.tables.flight_link import FlightLink, as_arrow
from tidemill.client.tables.scheduled import Scheduled, StoredPart, nothing_stored
from tidemill.core.errors import RequestError
from tidemill.core.send_answers import Answer
from tidemill.core.table_columns import JITTER_COLUMN, check_jitter_once

SendRows = Callable[[Iterator[Any]], list[Answer]]  # one by one, each with its answer


def scheduled_by_flight(
    flight: FlightLink, table: Any, topic: str | None, jitter_ms: int, send_rows: SendRows
) -> Scheduled | None:
    """The outcome of scheduling a table; None if it is not a table, or Flight is not available."""
    whole = as_arrow(table)
    if whole is None or not whole.num_rows or not flight.is_offered():
        return None
    if jitter_ms:
        whole = _with_jitter(whole, jitter_ms)
    return flight.schedule(whole, topic, lambda part: send_rows(drafts_of_table(part, topic)))


def _with_jitter(table: Any, jitter_ms: int) -> Any:
    import pyarrow as pa

    check_jitter_once(table.column_names)
    return table.append_column(JITTER_COLUMN, pa.repeat(pa.scalar(jitter_ms, pa.int64()), table.num_rows))


def stored_whole(flight: FlightLink, table: Any, topic: str | None) -> StoredPart:
    """A table that was stored as one batch; raises what is wrong with it."""
    whole = _required(table)
    return flight.put_whole(whole, topic) if whole.num_rows else nothing_stored()


def answers_column(flight: FlightLink, rows: Any, request_id: str) -> Any:
    """What became of each row that was to be cancelled, as an Arrow column."""
    import pyarrow as pa

    return pa.chunked_array(flight.cancel_rows(_required(rows), request_id), pa.string())


def _required(table: Any) -> Any:
    whole = as_arrow(table)
    if whole is None:
        raise RequestError(
            f"a {type(table).__name__} is not a table; give an Arrow table, or a pandas frame with one kind "
            "of "
            "value in each column"
        )
    return whole
