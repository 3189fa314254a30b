"""`client.tables`: the verbs that answer with whole Arrow tables, through the broker's Flight endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from tidemill.client.arguments import request_id_of, table_request
from tidemill.client.tables.scheduled import StoredPart
from tidemill.client.tables.whole import answers_column, stored_whole
from tidemill.client.verb import K, Namespace, Stream, Verb
from tidemill.core.durations import Moment


class Tables(Namespace[K]):
    """`client.tables`; docs/flight.md has the tables' columns."""

    @Verb
    async def pending(
        self,
        topic: str | None = None,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """All pending messages as an Arrow table."""
        return await self._read(table_request("pending", topic, start, end, columns) | {"key": key})

    @Verb
    async def history(
        self,
        topic: str | None = None,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Every recorded release as an Arrow table."""
        return await self._read(table_request("history", topic, start, end, columns))

    @Verb
    async def messages(
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
        return await self._read(request | {"offsets": offsets})

    @Verb
    async def store(self, table: Any, *, topic: str | None = None) -> StoredPart:
        """Send an Arrow table of at most 65,536 rows as one batch, stored whole or not at all.

        Raises what is wrong with it. `schedule` answers row by row instead, and takes any number of them.
        """
        return await self._operations.in_thread(stored_whole, self._operations.flight, table, topic)

    @Verb
    async def cancel(self, table: Any, *, request_id: str | None = None) -> Any:
        """Cancel the rows of an Arrow table with `topic`, `id` and `seq`; the answers as an Arrow column."""
        request = self._operations.flight, table, request_id_of(request_id)
        return await self._operations.in_thread(answers_column, *request)

    # -- for programs that read and write in parts, side by side ----------------------------------

    @Verb
    async def read(self, request: dict[str, Any]) -> Any:
        """The result of a request as an Arrow table; a request is a ticket of docs/flight.md."""
        return await self._read(request)

    async def _read(self, request: dict[str, Any]) -> Any:
        return await self._operations.in_thread(self._operations.flight.read, request)

    @Verb
    async def schema(self, request: dict[str, Any]) -> Any:
        """The Arrow schema of a request's result."""
        return await self._operations.in_thread(self._operations.flight.schema, request)

    @Verb
    async def parts(self, request: dict[str, Any], count: int) -> list[bytes]:
        """About `count` tickets that together hold every row of a request once, for `stream`."""
        return await self._operations.in_thread(self._operations.flight.parts, request | {"parts": count})

    @Stream
    async def stream(self, ticket: bytes) -> AsyncIterator[Any]:
        """The Arrow batches of a ticket as they come, so that a table need not fit into memory."""
        batches = self._operations.flight.stream(ticket)
        while (batch := await self._operations.in_thread(next, batches, None)) is not None:
            yield batch
