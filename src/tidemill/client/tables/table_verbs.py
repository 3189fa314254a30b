"""The client's methods that answer with whole Arrow tables, through the broker's Flight endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidemill.client.arguments import request_id_of, table_request
from tidemill.client.send.drafts import drafts_of_table
from tidemill.client.tables.flight_link import FlightLink, as_arrow
from tidemill.client.tables.scheduled import Scheduled, StoredPart, nothing_stored
from tidemill.core.durations import Moment
from tidemill.core.errors import RequestError
from tidemill.core.send_answers import Answer
from tidemill.core.table_columns import JITTER_COLUMN, check_jitter_once

SendRows = Callable[[Iterator[Any]], list[Answer]]  # one by one, each with its answer


class TableVerbs:
    """Part of `Client`; docs/flight.md has the tables' columns."""

    _flight: FlightLink

    def pending_table(
        self,
        topic: str | None = None,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """All pending messages as an Arrow table, through the broker's Flight endpoint (docs/flight.md)."""
        return self._flight.read(table_request("pending", topic, start, end, columns) | {"key": key})

    def history_table(
        self,
        topic: str | None = None,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Every recorded release as an Arrow table, through the broker's Flight endpoint."""
        return self._flight.read(table_request("history", topic, start, end, columns))

    def messages_table(
        self,
        topic: str,
        *,
        offsets: dict[int, int] | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """What is in a topic's queues, from these offsets on, as an Arrow table; nothing is taken."""
        request = table_request("messages", topic, start, end, columns)
        return self._flight.read(request | {"offsets": offsets})

    # -- for programs that read and write in parts, side by side ----------------------------------

    def table_schema(self, request: dict[str, Any]) -> Any:
        """The Arrow schema of a request's result; a request is a ticket of docs/flight.md."""
        return self._flight.schema(request)

    def table_parts(self, request: dict[str, Any], count: int) -> list[bytes]:
        """About `count` tickets that together hold every row of a request once, for `table_stream`."""
        return self._flight.parts(request | {"parts": count})

    def table_stream(self, ticket: bytes) -> Iterator[Any]:
        """The Arrow batches of a ticket as they come, so that a table need not fit into memory."""
        return self._flight.stream(ticket)

    def read_table(self, request: dict[str, Any]) -> Any:
        """The result of a request as an Arrow table."""
        return self._flight.read(request)

    def schedule_whole(self, table: Any, *, topic: str | None = None) -> StoredPart:
        """Send an Arrow table of at most 65,536 rows as one batch, stored whole or not at all.

        Raises what is wrong with it. `schedule` answers row by row instead, and takes any number of them.
        """
        return stored_whole(self._flight, table, topic)

    def cancel_table(self, table: Any, *, request_id: str | None = None) -> Any:
        """Cancel the rows of an Arrow table with `topic`, `id` and `seq`; the answers as an Arrow column."""
        return answers_column(self._flight, table, request_id_of(request_id))


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
