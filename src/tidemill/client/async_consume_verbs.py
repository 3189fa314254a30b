"""The methods of a consumer for asyncio: the same as `consume_verbs.py`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TypeVar

from tidemill.client import verbs
from tidemill.client.answers import Message
from tidemill.client.arguments import ack_token_of
from tidemill.client.consume_verbs import Fetched, in_calls
from tidemill.client.verbs import Call
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import Span, as_duration_ms
from tidemill.core.errors import TidemillError

T = TypeVar("T")


class AsyncConsumeVerbs:
    """Part of `AsyncClient`."""

    @property
    def _is_closed(self) -> bool:
        raise NotImplementedError

    async def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def receive_batch(
        self,
        topic: str,
        group: str,
        *,
        count: int = 32,
        wait: Span = 0,
        invisible: Span = "30s",
        tags: Sequence[str] | None = None,
        one_per_message_group: bool = False,
    ) -> list[Message]:
        """Take up to `count` messages, waiting for the first one; settle each with `ack`."""
        invisible_ms = as_duration_ms(invisible)
        messages: list[Message] = []
        for wait_ms in in_calls(as_duration_ms(wait)):
            messages = await self._ask(
                verbs.receive(topic, group, count, wait_ms, invisible_ms, tags, one_per_message_group)
            )
            if messages or self._is_closed:
                break
        return messages

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        batch: int = 32,
        wait: Span = "20s",
        invisible: Span = "30s",
        tags: Sequence[str] | None = None,
        auto_ack: bool = True,
        is_endless: bool = True,
    ) -> AsyncIterator[Message]:
        """Receive messages. With `auto_ack` one is acknowledged when the next is requested."""
        while not self._is_closed:
            messages = await self.receive_batch(
                topic, group, count=batch, wait=wait, invisible=invisible, tags=tags
            )
            if not messages and not is_endless:
                return
            fetched = Fetched(messages, invisible)
            try:
                while fetched.messages:
                    if fetched.is_half_over:
                        fetched.renewed(stopwatch_s(), await self.retry_in(invisible, *fetched.messages))
                        if not fetched.messages:
                            break
                    message = fetched.messages.popleft()  # also where the renewed lease is half over by now
                    yield message
                    if auto_ack:
                        await self.ack(message)
            finally:
                if fetched.messages and not self._is_closed:
                    with suppress(TidemillError):  # as in `consume_verbs.py`
                        await self.give_back(*fetched.messages)

    async def ack(self, *messages: Message | str) -> list[bool]:
        """Settle messages; False where the ack token is spent, as `Client.ack` explains."""
        return await self._ask(verbs.ack([ack_token_of(message) for message in messages]))

    async def retry_in(self, delay: Span, *messages: Message | str) -> list[bool]:
        """Let messages be delivered again after `delay`."""
        ack_tokens = [ack_token_of(message) for message in messages]
        return await self._ask(verbs.change_invisibility(ack_tokens, as_duration_ms(delay)))

    async def give_back(self, *messages: Message | str) -> list[bool]:
        """Let messages that were not tried be delivered again at once; that counts as no attempt."""
        return await self._ask(verbs.give_back([ack_token_of(message) for message in messages]))
