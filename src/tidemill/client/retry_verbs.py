"""The calls for failed messages: retry, move to dead letters, list and resend dead letters.

Both clients share the calls; the methods here are those of the blocking client.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeVar

from tidemill.client.answers import DeadLetter, Message, SentBack
from tidemill.client.arguments import ack_token_of
from tidemill.client.verbs import Call, get, known, post
from tidemill.core.durations import Span, as_duration_ms

T = TypeVar("T")


def send_back(ack_tokens: Sequence[str], level: int) -> Call[list[SentBack]]:
    body = {"ack_tokens": list(ack_tokens), "level": level}
    # A repeat of one that was answered finds its ack tokens spent: better not to retry.
    return post("/v1/send-back", body, _sent_back, is_repeatable=False)


def retry(ack_tokens: Sequence[str], delay: Span | None) -> Call[list[SentBack]]:
    body = {"ack_tokens": list(ack_tokens), "delay_ms": None if delay is None else as_duration_ms(delay)}
    # Repeated, it delays them again; what was dead by the first is answered with `invalid`.
    return post("/v1/retry", body, _sent_back)


def _sent_back(said: Any) -> list[SentBack]:
    return [SentBack(**known(SentBack, fields)) for fields in said["answers"]]


def dead_letters(group: str | None, limit: int) -> Call[list[DeadLetter]]:
    query = {"group": group, "limit": limit}
    return get("/v1/dead-letters", query, lambda said: [_letter(fields) for fields in said["dead_letters"]])


def _letter(fields: dict[str, Any]) -> DeadLetter:
    text, encoded = fields.pop("body"), fields.pop("body_base64")
    body = text.encode() if text is not None else base64.b64decode(encoded or "")
    message_id, keys = fields.pop("message_id"), tuple(fields.pop("keys"))
    return DeadLetter(id=message_id, body=body, keys=keys, **known(DeadLetter, fields))


def resend_dead_letters(group: str, ids: Sequence[str] | None) -> Call[int]:
    body = {"group": group, "ids": None if ids is None else list(ids), "all": ids is None}
    # Repeated, it would find none of those that it has resent.
    return post("/v1/dead-letters/resend", body, lambda said: int(said["resent"]), is_repeatable=False)


class RetryVerbs:
    """The methods of `Client` for what failed."""

    def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    def retry(self, *messages: Message | str, delay: Span | None = None) -> list[SentBack]:
        """Report that messages failed: they are delivered again after their group's pause, or after `delay`.

        When the group's attempts are used up they go to the dead letters at once.
        """
        return self._ask(retry([ack_token_of(message) for message in messages], delay))

    def send_back(self, *messages: Message | str, level: int = 0) -> list[SentBack]:
        """Return messages, for redelivery to this group after a level's delay; -1: to the dead letters."""
        return self._ask(send_back([ack_token_of(message) for message in messages], level))

    def dead_letters(self, group: str | None = None, *, limit: int = 100) -> list[DeadLetter]:
        """Messages that a group (or any) gave up on, oldest first."""
        return self._ask(dead_letters(group, limit))

    def resend_dead_letters(self, group: str, ids: Sequence[str] | None = None) -> int:
        """Resend dead letters (None: all) to their group; returns how many."""
        return self._ask(resend_dead_letters(group, ids))
