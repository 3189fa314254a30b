"""The verbs that cancel and reschedule."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.client.arguments import chosen, handles_of, new_time, request_id_of
from tidemill.client.checks import require_text
from tidemill.client.verb import Caller, K, Verb
from tidemill.core.answers import Moved
from tidemill.core.durations import Moment, Span
from tidemill.core.model import CancelAnswer, Handle

HandleLike = Handle | str


class ChangeVerbs(Caller[K]):
    """Part of a client."""

    @Verb
    async def cancel(self, handle: HandleLike, *, request_id: str | None = None) -> CancelAnswer:
        """Cancel one message; returns the definite outcome."""
        return (await self._operations.cancel(handles_of([handle]), request_id_of(request_id)))[0]

    @Verb
    async def cancel_many(
        self, handles: Iterable[HandleLike], *, request_id: str | None = None
    ) -> list[CancelAnswer]:
        """Cancel many messages; returns the definite outcome of each."""
        return await self._operations.cancel_many(handles_of(handles), request_id_of(request_id))

    @Verb
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
        require_text("topic", topic)
        where = chosen(key, start, end)
        return await self._operations.cancel_where(topic, where, request_id_of(request_id))

    @Verb
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
        to = new_time(at, delay, by)
        return (await self._operations.reschedule(handles_of([handle]), to, request_id_of(request_id)))[0]

    @Verb
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
        require_text("topic", topic)
        to, where = new_time(at, delay, by), chosen(key, start, end)
        return await self._operations.reschedule_where(topic, where, to, request_id_of(request_id))
