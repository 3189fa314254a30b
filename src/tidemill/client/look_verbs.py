"""The verbs that only look."""

from __future__ import annotations

from tidemill.client.arguments import optional_time
from tidemill.client.checks import require_horizon, require_limit, require_text, require_text_or_none
from tidemill.client.verb import Caller, K, Verb
from tidemill.core.answers import BrokerStatus, FoundMessage, Minute, PendingMessage
from tidemill.core.durations import Moment, Span, as_duration_ms


class LookVerbs(Caller[K]):
    """Part of a client."""

    @Verb
    async def pending(
        self,
        topic: str | None = None,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        limit: int = 100,
    ) -> list[PendingMessage]:
        """Messages that wait, earliest due first."""
        require_text_or_none("topic", topic)
        require_text_or_none("key", key)
        require_limit(limit)
        return await self._operations.pending(topic, key, optional_time(start), optional_time(end), limit)

    @Verb
    async def find(self, topic: str, key: str) -> list[FoundMessage]:
        """Messages with a key and what became of each, newest first."""
        require_text("topic", topic)
        require_text("key", key)
        return await self._operations.find(topic, key)

    @Verb
    async def forecast(self, topic: str | None = None, *, horizon: Span = "1h") -> list[Minute]:
        """How many messages fall due in each minute."""
        require_text_or_none("topic", topic)
        horizon_ms = as_duration_ms(horizon)
        require_horizon(horizon_ms)
        return await self._operations.forecast(topic, horizon_ms)

    @Verb
    async def status(self) -> BrokerStatus:
        """The broker's state: its clock, counts, lateness and timer runner."""
        return await self._operations.status()
