"""The client's verbs that answer with whole Arrow tables, through the broker's Flight door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.client.arguments import table_request
from tidemill.client.flight_link import FlightLink
from tidemill.core.durations import Moment


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
        """All that waits, as an Arrow table, through the broker's Flight door (docs/flight.md)."""
        return self._flight.read(table_request("pending", topic, start, end, columns) | {"key": key})

    def history_table(
        self,
        topic: str | None = None,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Every release there is a record of, as an Arrow table, through the broker's Flight door."""
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
