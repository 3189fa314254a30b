"""The methods of `AsyncClient` that cancel and reschedule: the same as `change_verbs.py`, awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tidemill.client import verbs
from tidemill.client.answers import Moved
from tidemill.client.arguments import (
    FEW_HANDLES,
    HANDLES_IN_A_REQUEST,
    handles_of,
    optional_time,
    parsed_handles,
    request_id_of,
    whither_of,
)
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.verbs import Call, HandleLike
from tidemill.core.durations import Moment, Span
from tidemill.core.model import CancelAnswer
from tidemill.core.request_ids import id_of_part
from tidemill.core.splitting import split

T = TypeVar("T")


class AsyncChangeVerbs:
    """Part of `AsyncClient`."""

    _flight: FlightLink

    async def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def _in_thread(self, act: Callable[..., T], *args: Any) -> T:
        raise NotImplementedError

    async def cancel(self, handle: HandleLike, *, request_id: str | None = None) -> CancelAnswer:
        """Cancel one message; returns the definite outcome."""
        return (await self._ask(verbs.cancel([handle], request_id_of(request_id))))[0]

    async def cancel_many(
        self, handles: Iterable[HandleLike], *, request_id: str | None = None
    ) -> list[CancelAnswer]:
        """Cancel many messages; returns the definite outcome of each."""
        several, whole_id = handles_of(handles), request_id_of(request_id)
        if len(several) > FEW_HANDLES and await self._in_thread(self._flight.is_offered):
            return await self._in_thread(lambda: self._flight.cancel(parsed_handles(several), whole_id))
        answers: list[CancelAnswer] = []
        for number, part in enumerate(split(several, HANDLES_IN_A_REQUEST)):
            answered = await self._ask(verbs.cancel(part, id_of_part(whole_id, number)))
            answers += answered
        return answers

    async def cancel_where(
        self,
        topic: str,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        request_id: str | None = None,
    ) -> int:
        """Cancel all pending messages with a key, or due in `[start, end)`; returns how many."""
        ends = optional_time(start), optional_time(end)
        return await self._ask(verbs.cancel_where(topic, key, *ends, request_id_of(request_id)))

    async def reschedule(
        self,
        handle: HandleLike,
        *,
        at: Moment | None = None,
        delay: Span | None = None,
        by: Span | None = None,
        request_id: str | None = None,
    ) -> Moved:
        """Move one message that waits: to a time, to a delay from now, or by a span."""
        whither = whither_of(at, delay, by)
        return (await self._ask(verbs.reschedule([handle], whither, request_id_of(request_id))))[0]

    async def reschedule_where(
        self,
        topic: str,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        at: Moment | None = None,
        delay: Span | None = None,
        by: Span | None = None,
        request_id: str | None = None,
    ) -> int:
        """Move all pending messages with a key, or due in `[start, end)`; returns how many."""
        ends, whither = (optional_time(start), optional_time(end)), whither_of(at, delay, by)
        return await self._ask(verbs.reschedule_where(topic, key, *ends, whither, request_id_of(request_id)))
