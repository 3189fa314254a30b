"""The verbs of a consumer: receive, ack, nack.

Owns the leases of messages that an iterator has fetched and not yet returned: when half of a lease is over it
is renewed, and a message whose lease was lost is left out. So slow processing does not deliver the last
messages of a batch twice. When the iterator ends early, the remaining messages are returned to the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress

from tidemill.client.arguments import ack_token_of, optional_ms
from tidemill.client.checks import require_extend, require_receive, require_retry_level, tags_of
from tidemill.client.verb import Caller, K, Stream, Verb
from tidemill.core.answers import Message, NackResult
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import Span, as_duration_ms
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.limits import RECEIVE_WAIT_MS_MAX


class Fetched:
    """Messages fetched together and not handed over yet; their lease runs by this machine's stopwatch."""

    def __init__(self, messages: Sequence[Message], lease_ms: int) -> None:
        self._half_s = lease_ms / 2000
        self._since_s = stopwatch_s()
        self.messages = deque(messages)

    @property
    def is_half_over(self) -> bool:
        return stopwatch_s() - self._since_s > self._half_s

    def renewed(self, since_s: float, is_ours: Sequence[bool]) -> None:
        """Renew the leases; messages whose lease was lost are left out."""
        self._since_s = since_s
        self.messages = deque(m for m, ours in zip(self.messages, is_ours, strict=True) if ours)

    @property
    def ack_tokens(self) -> list[str]:
        return [message.ack_token for message in self.messages]


def in_calls(wait_ms: int) -> Iterator[int]:
    """How long each of several calls waits that together wait so long: one alone has its limit."""
    yield min(wait_ms, RECEIVE_WAIT_MS_MAX)
    for waited_ms in range(RECEIVE_WAIT_MS_MAX, wait_ms, RECEIVE_WAIT_MS_MAX):
        yield min(wait_ms - waited_ms, RECEIVE_WAIT_MS_MAX)


class ConsumeVerbs(Caller[K]):
    """Part of a client."""

    @Verb
    async def receive_batch(
        self,
        topic: str,
        group: str,
        *,
        count: int = 32,
        wait: Span = 0,
        lease: Span = "30s",
        tags: Sequence[str] | None = None,
        one_per_message_group: bool = False,
    ) -> list[Message]:
        """Take up to `count` messages, waiting for the first one; settle each with `ack`.

        For a group that keeps order, `one_per_message_group` keeps back the second of a message group until
        the first is settled: for who works on several at once.
        """
        wait_ms, lease_ms = as_duration_ms(wait), as_duration_ms(lease)
        return await self._fetch(topic, group, count, wait_ms, lease_ms, tags, one_per_message_group)

    async def _fetch(
        self,
        topic: str,
        group: str,
        count: int,
        wait_ms: int,
        lease_ms: int,
        tags: Sequence[str] | None,
        one_per_message_group: bool = False,
    ) -> list[Message]:
        require_receive(topic, group, count, lease_ms, one_per_message_group)
        rest = lease_ms, tags_of(tags), one_per_message_group
        messages: list[Message] = []
        for part_ms in in_calls(wait_ms):
            messages = await self._operations.receive(topic, group, count, part_ms, *rest)
            if messages or self._operations.is_closed:
                break
        return messages

    @Stream
    async def receive(
        self,
        topic: str,
        group: str,
        *,
        batch: int = 32,
        wait: Span = "20s",
        lease: Span = "30s",
        tags: Sequence[str] | None = None,
        auto_ack: bool = True,
        stop_when_idle: bool = False,
    ) -> AsyncIterator[Message]:
        """Receive messages. With `auto_ack` one is acknowledged when the next is requested.

        Leaving the loop leaves its message unacknowledged, to be delivered again when its lease ends; what
        was fetched with it and not yet returned goes back to the broker at once, and is no attempt. With
        `stop_when_idle` it ends when nothing came within `wait`. One message at a time may take as long as
        `lease`; for longer ones there is `Worker`.
        """
        operations = self._operations
        wait_ms, lease_ms = as_duration_ms(wait), as_duration_ms(lease)
        while not operations.is_closed:
            messages = await self._fetch(topic, group, batch, wait_ms, lease_ms, tags)
            if not messages and stop_when_idle:
                return
            fetched = Fetched(messages, lease_ms)
            try:
                while fetched.messages:
                    if fetched.is_half_over:
                        fetched.renewed(stopwatch_s(), await operations.extend(fetched.ack_tokens, lease_ms))
                        if not fetched.messages:
                            break
                    message = fetched.messages.popleft()  # also where the renewed lease is half over by now
                    yield message
                    if auto_ack:
                        await operations.ack([message.ack_token])
            finally:
                if fetched.messages and not operations.is_closed:
                    # Should it fail, the leases end by themselves; what ended the loop matters more.
                    with suppress(TidemillError):
                        await operations.requeue(fetched.ack_tokens)

    @Verb
    async def ack(self, *messages: Message | str) -> list[bool]:
        """Acknowledge messages; False where the ack token is no longer valid.

        Then the lease had ended and the message was delivered again, or it had been acknowledged by this
        token before: also by this very call, if its answer was lost and it retried.
        """
        return await self._operations.ack([*map(ack_token_of, messages)])

    @Verb
    async def nack(
        self, *messages: Message | str, delay: Span | None = None, level: int | None = None
    ) -> list[NackResult]:
        """Report that messages failed: they are delivered again after their group's pause, or after `delay`.

        When the group's attempts are used up they go to the dead letters at once. With a `level` they are
        scheduled anew for this group alone, after the level's delay, and can be cancelled meanwhile.
        """
        if delay is not None and level is not None:
            raise RequestError("pass delay or level, not both")
        require_retry_level(level)
        return await self._operations.nack([*map(ack_token_of, messages)], optional_ms(delay), level)

    @Verb
    async def extend(self, *messages: Message | str, lease: Span) -> list[bool]:
        """Let the leases of messages end in `lease` from now; False where the token is no longer valid."""
        lease_ms = as_duration_ms(lease)
        require_extend(lease_ms)
        return await self._operations.extend([*map(ack_token_of, messages)], lease_ms)

    @Verb
    async def requeue(self, *messages: Message | str) -> list[bool]:
        """Return messages untried: they are delivered again at once, and that counts as no attempt."""
        return await self._operations.requeue([*map(ack_token_of, messages)])

    @Verb
    async def dead_letter(self, *messages: Message | str) -> list[bool]:
        """Move messages to the dead letters of their group, whatever attempts it has left."""
        return await self._operations.dead_letter([*map(ack_token_of, messages)])
