"""Messages sent back: each comes again to its group alone, once and not early, or is a dead letter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.breaking import Broken

if TYPE_CHECKING:
    from simulation.consumers import Taken
    from tidemill.broker.query.message_history import MessageView
    from tidemill.core.model import StoredMessage

RETRY = "%RETRY%"

RetryKey = tuple[str, bytes, int]  # group, body, attempts before
LetterKey = tuple[str, str, bytes]  # group, topic name, body


@dataclass
class Retry:
    """One send-back and everything that may be true of it."""

    source: Taken = field(repr=False)
    origin: str
    due_ms: int
    is_dead: bool  # it goes to the dead letters
    is_stored: bool | None = None  # None: in doubt
    is_cancelled: bool | None = False
    is_seen: bool = False

    @property
    def is_pending(self) -> bool:
        return bool(self.is_stored) and not self.is_dead and self.is_cancelled is False and not self.is_seen


def key_of(topic: str, message: StoredMessage) -> RetryKey:
    return topic.removeprefix(RETRY), message.body, int(message.properties["RECONSUME_TIME"])


class Retries:
    """All that was sent back."""

    def __init__(self) -> None:
        self.known: dict[RetryKey, Retry] = {}

    def pending(self) -> list[Retry]:
        return [retry for retry in self.known.values() if retry.is_pending]

    def arrived(self, topic: str, row: MessageView, latest_ms: int) -> None:
        """A message was found in a retry topic."""
        key = key_of(topic, row.message)
        retry = self.known.get(key)
        if retry is None or retry.is_dead or retry.is_stored is False or retry.is_seen or retry.is_cancelled:
            raise Broken(f"{key} is in {topic} and should not be: {retry}")
        if row.message.properties["RETRY_TOPIC"] != retry.origin:
            raise Broken(f"{key} of {retry.origin} says that it came from elsewhere")
        if row.message.deliver_at_ms != retry.due_ms or min(row.released_at_ms, latest_ms) < retry.due_ms:
            raise Broken(f"{key} was due at {retry.due_ms}: {row}")
        retry.is_stored, retry.is_cancelled, retry.is_seen = True, False, True

    def check_pending(self, listed: dict[RetryKey, int], buried: set[LetterKey]) -> None:
        """What the broker lists is what waits; what was in doubt is settled by it."""
        for key, due_ms in listed.items():
            retry = self.known.get(key)
            if (
                retry is None
                or retry.is_seen
                or retry.is_dead
                or retry.is_cancelled
                or retry.due_ms != due_ms
            ):
                raise Broken(f"{key} waits for {due_ms} and should not: {retry}")
            retry.is_stored, retry.is_cancelled = True, False
        for key, retry in self.known.items():
            group, body, _ = key
            if key in listed or retry.is_seen:
                retry.source.is_acked = True
                continue
            if retry.is_pending:
                raise Broken(f"{key} was sent back and is lost: {retry}")
            if retry.is_stored is None:
                happened = retry.is_dead and (group, retry.origin, body) in buried
                retry.is_stored = happened
                retry.source.is_acked = retry.source.is_sent_back = happened
            if retry.is_cancelled is None:
                retry.is_cancelled = True
