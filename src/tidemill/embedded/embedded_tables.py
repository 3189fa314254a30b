"""Whole tables in and out of a broker in this process: what `FlightLink` does through the Flight endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidemill.broker.broker import Broker
from tidemill.broker.change.canceller import ANSWERS
from tidemill.broker.query.table_schemas import Wanted
from tidemill.client.tables.flight_link import FlightLink, framed
from tidemill.client.tables.scheduled import RowByRow, Scheduled, StoredPart, scheduled
from tidemill.client.tables.table_ids import until_empty_id, with_ids
from tidemill.core.limits import FRAME_ROWS_MAX
from tidemill.core.model import CancelAnswer, Handle
from tidemill.core.request_ids import request_key


class EmbeddedTables(FlightLink):
    """The tables of an embedded broker. Thread-safe."""

    def __init__(self, broker: Broker) -> None:
        self._here = broker

    def is_offered(self) -> bool:
        return True

    def schedule(self, table: Any, topic: str | None, row_by_row: RowByRow) -> Scheduled:
        batches = list(framed(with_ids(table)))
        return scheduled(
            batches, lambda parts: parts.append(self._stored(batches[len(parts)], topic)), row_by_row
        )

    def put_whole(self, table: Any, topic: str | None) -> StoredPart:
        (batch,) = with_ids(table).combine_chunks().to_batches()
        return self._stored(batch, topic)

    def _stored(self, batch: Any, topic: str | None) -> StoredPart:
        until_empty_id([batch])
        result = self._here.send_table(batch, topic=topic, is_whole=True)
        columns = {
            "id": result.ids,
            "seq": pa.array(result.seqs),
            "deliver_at_ms": pa.array(result.deliver_at_ms),
            "is_repeat": pa.array(result.is_repeat),
        }
        if result.notes is not None:
            columns["note"] = result.notes
        return StoredPart(result.broker, result.topics if topic is None else topic, pa.table(columns))

    def read(self, request: dict[str, Any]) -> Any:
        wanted = _wanted(request)
        return pa.Table.from_batches(self._read(wanted), wanted.schema())

    def _read(self, wanted: Wanted) -> Iterator[Any]:
        self._here.require_open()
        return self._here.tables.read(wanted)

    def schema(self, request: dict[str, Any]) -> Any:
        return _wanted(request).schema()

    def parts(self, request: dict[str, Any]) -> list[bytes]:
        from tidemill.server.flight.flight_requests import parts_of, ticket_content

        count = parts_of(request)
        wanted = _wanted(request)
        self._here.require_open()
        found = self._here.tables.parts(wanted, count) if count > 1 else [wanted]
        return list(map(ticket_content, found))

    def stream(self, ticket: bytes) -> Iterator[Any]:
        from tidemill.server.flight.flight_requests import parse_ticket

        yield from self._read(parse_ticket(ticket))

    def cancel(self, handles: Sequence[Handle], request_id: str) -> list[CancelAnswer]:
        return self._here.cancel(handles, request_id=request_key(request_id))

    def cancel_rows(self, rows: Any, request_id: str) -> list[Any]:
        from tidemill.server.flight.flight_requests import cancel_columns

        texts = pa.array([ANSWERS[state].value for state in sorted(ANSWERS)])
        answers = []
        for part, batch in enumerate(rows.to_batches(max_chunksize=FRAME_ROWS_MAX)):
            topics, ids, seqs = cancel_columns(batch, self._here.id, None)
            key = request_key(request_id, part=part)
            codes = self._here.cancel_rows(topics, ids, seqs, request_id=key)
            answers.append(texts.take(pa.array(codes)))
        return answers


def _wanted(request: dict[str, Any]) -> Wanted:
    """The rows and columns of a request, read as from a ticket."""
    from tidemill.server.flight.flight_requests import parse_ticket

    given = {name: value for name, value in request.items() if value is not None}
    return parse_ticket(json.dumps(given).encode())
