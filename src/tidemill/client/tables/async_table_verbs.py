"""The methods of `AsyncClient` for whole tables: the same as those of `Client`, awaited.

Flight blocks, so it is called in threads (`blocking_calls.py`), and the event loop goes on. A task that is
cancelled does not wait for its call, which still runs to its end.

Invariant: the event loop never waits for `FlightLink`, which may itself wait for the loop: to find the
endpoint, and to send the rows of a batch one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from tidemill.client import verbs
from tidemill.client.arguments import (
    request_id_of,
    table_request,
)
from tidemill.client.send.drafts import drafts_of_table, jitter_ms_of
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.tables.scheduled import Scheduled, StoredPart
from tidemill.client.tables.table_verbs import answers_column, scheduled_by_flight, stored_whole
from tidemill.client.transport.blocking_calls import in_own_thread, on_the_loop
from tidemill.client.verbs import Call
from tidemill.core.durations import Moment, Span
from tidemill.core.errors import TidemillError
from tidemill.core.model import Draft, SendResult

T = TypeVar("T")
TABLES_AT_ONCE: Final = 16  # each has a thread


class AsyncTableVerbs:
    """Part of `AsyncClient`; docs/flight.md has the tables' columns."""

    _flight: FlightLink
    _loop: asyncio.AbstractEventLoop | None
    _tables_at_once: asyncio.Semaphore

    async def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def send_many(self, drafts: Iterable[Draft]) -> list[SendResult | TidemillError]:
        raise NotImplementedError

    def _bind_to_loop(self) -> None:
        raise NotImplementedError

    # -- schedule and cancel ----------------------------------------------------------------------

    async def schedule(
        self, table: Any, *, topic: str | None = None, jitter: Span | None = None
    ) -> Scheduled:
        """Send the rows of an Arrow table, a pandas frame or an iterable of mappings; each has its answer.

        Tables go through the broker's Flight endpoint where it has one, which is much faster. `jitter` is
        that of every row; a column `jitter_ms` gives each its own.
        """
        jitter_ms = 0 if jitter is None else jitter_ms_of(jitter)
        by_flight = scheduled_by_flight, self._flight, table, topic, jitter_ms
        scheduled = await self._in_thread(*by_flight, self._send_rows)
        if scheduled is None:
            return Scheduled([await self.send_many(drafts_of_table(table, topic, jitter_ms))])
        return scheduled

    async def schedule_whole(self, table: Any, *, topic: str | None = None) -> StoredPart:
        """Send an Arrow table of at most 65,536 rows as one batch, stored whole or not at all."""
        return await self._in_thread(stored_whole, self._flight, table, topic)

    async def cancel_table(self, table: Any, *, request_id: str | None = None) -> Any:
        """Cancel the rows of an Arrow table with `topic`, `id` and `seq`; the answers as an Arrow column."""
        return await self._in_thread(answers_column, self._flight, table, request_id_of(request_id))

    # -- looking ----------------------------------------------------------------------------------

    async def pending_table(
        self,
        topic: str | None = None,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """All that waits, as an Arrow table."""
        return await self.read_table(table_request("pending", topic, start, end, columns) | {"key": key})

    async def history_table(
        self,
        topic: str | None = None,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Every release there is a record of, as an Arrow table."""
        return await self.read_table(table_request("history", topic, start, end, columns))

    async def messages_table(
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
        return await self.read_table(request | {"offsets": offsets})

    async def read_table(self, request: dict[str, Any]) -> Any:
        """The result of a request as an Arrow table; a request is a ticket of docs/flight.md."""
        return await self._in_thread(self._flight.read, request)

    async def table_schema(self, request: dict[str, Any]) -> Any:
        """The Arrow schema of a request's result."""
        return await self._in_thread(self._flight.schema, request)

    async def table_parts(self, request: dict[str, Any], count: int) -> list[bytes]:
        """About `count` tickets that together hold every row of a request once, for `table_stream`."""
        return await self._in_thread(self._flight.parts, request | {"parts": count})

    async def table_stream(self, ticket: bytes) -> AsyncIterator[Any]:
        """The Arrow batches of a ticket as they come, so that a table need not fit into memory."""
        batches = self._flight.stream(ticket)
        while (batch := await self._in_thread(next, batches, None)) is not None:
            yield batch

    # -- between the loop and the threads ---------------------------------------------------------

    def _health(self) -> dict[str, Any]:
        """The broker's `/healthz`. In a thread."""
        return on_the_loop(self._loop, self._ask(verbs.health()))

    def _send_rows(self, drafts: Iterable[Draft]) -> list[SendResult | TidemillError]:
        """Send them one by one. In a thread."""
        return on_the_loop(self._loop, self.send_many(drafts))

    async def _in_thread(self, act: Callable[..., T], *args: Any) -> T:
        self._bind_to_loop()
        async with self._tables_at_once:
            return await in_own_thread(act, *args)
