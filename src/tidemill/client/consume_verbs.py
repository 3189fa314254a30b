"""The methods of a blocking consumer: receive, ack, nack.

Owns the leases of messages that an iterator has fetched and not yet returned: when half of a lease is over it
is renewed, and a message whose lease was lost is left out. So slow processing does not deliver the last
messages of a batch twice. When the iterator ends early, the remaining messages are returned to the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from tidemill.client import verbs
from tidemill.client.answers import Message
from tidemill.client.arguments import ack_token_of
from tidemill.client.transport.close_signal import Closing
from tidemill.client.verbs import Call
from tidemill.core.clock import stopwatch_s
from tidemill.core.durations import Span, as_duration_ms
from tidemill.core.errors import TidemillError
from tidemill.core.limits import RECEIVE_WAIT_MS_MAX

T = TypeVar("T")


class Fetched:
    """Messages fetched together and not handed over yet; their lease runs by this machine's stopwatch."""

    def __init__(self, messages: Sequence[Message], invisible: Span) -> None:
        self._half_s = as_duration_ms(invisible) / 2000
        self._since_s = stopwatch_s()
        self.messages = deque(messages)

    @property
    def is_half_over(self) -> bool:
        return stopwatch_s() - self._since_s > self._half_s

    def renewed(self, since_s: float, is_ours: Sequence[bool]) -> None:
        """Renew the leases; messages whose lease was lost are left out."""
        self._since_s = since_s
        self.messages = deque(m for m, ours in zip(self.messages, is_ours, strict=True) if ours)


def in_calls(wait_ms: int) -> Iterator[int]:
    """How long each of several calls waits that together wait so long: one alone has its limit."""
    yield min(wait_ms, RECEIVE_WAIT_MS_MAX)
    for waited_ms in range(RECEIVE_WAIT_MS_MAX, wait_ms, RECEIVE_WAIT_MS_MAX):
        yield min(wait_ms - waited_ms, RECEIVE_WAIT_MS_MAX)


class ConsumeVerbs:
    """Part of `Client`."""

    _closing: Closing

    def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    def receive_batch(
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
        """Take up to `count` messages, waiting for the first one; settle each with `ack`.

        For a group that keeps order, `one_per_message_group` keeps back the second of a message group until
        the first is settled: for who works on several at once.
        """
        invisible_ms = as_duration_ms(invisible)
        messages: list[Message] = []
        for wait_ms in in_calls(as_duration_ms(wait)):
            messages = self._ask(
                verbs.receive(topic, group, count, wait_ms, invisible_ms, tags, one_per_message_group)
            )
            if messages or self._closing.is_set():
                break
        return messages

    def receive(
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
    ) -> Iterator[Message]:
        """Receive messages. With `auto_ack` one is acknowledged when the next is requested.

        Leaving the loop leaves its message unacknowledged, to be delivered again when its lease ends; what
        was fetched with it and not yet returned goes back to the broker at once, and is no attempt. With
        `is_endless=False` it ends when nothing came within `wait`. One message at a time may take as long as
        `invisible`; for longer ones there is `Worker`.
        """
        while not self._closing.is_set():
            messages = self.receive_batch(
                topic, group, count=batch, wait=wait, invisible=invisible, tags=tags
            )
            if not messages and not is_endless:
                return
            fetched = Fetched(messages, invisible)
            try:
                while fetched.messages:
                    if fetched.is_half_over:
                        fetched.renewed(stopwatch_s(), self.retry_in(invisible, *fetched.messages))
                        if not fetched.messages:
                            break
                    message = fetched.messages.popleft()  # also where the renewed lease is half over by now
                    yield message
                    if auto_ack:
                        self.ack(message)
            finally:
                if fetched.messages and not self._closing.is_set():
                    # Should it fail, the leases end by themselves; what ended the loop matters more.
                    with suppress(TidemillError):
                        self.give_back(*fetched.messages)

    def ack(self, *messages: Message | str) -> list[bool]:
        """Acknowledge messages; False where the ack token is no longer valid.

        Then the lease had ended and the message was delivered again, or it had been acknowledged by this
        ack token before: also by this very call, if its answer was lost and it retried.
        """
        return self._ask(verbs.ack([ack_token_of(message) for message in messages]))

    def retry_in(self, delay: Span, *messages: Message | str) -> list[bool]:
        """Let messages be delivered again after `delay`."""
        return self._ask(verbs.change_invisibility([*map(ack_token_of, messages)], as_duration_ms(delay)))

    def give_back(self, *messages: Message | str) -> list[bool]:
        """Let messages that were not tried be delivered again at once; that counts as no attempt."""
        return self._ask(verbs.give_back([ack_token_of(message) for message in messages]))
