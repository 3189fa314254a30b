"""Serves one request of many sends, from any endpoint: checks permissions, stores, answers.

Owns no transport: `send_batch_endpoint.py` brings requests from the port, `unix_listener.py` from the Unix
socket. Reads and writes the format of `core/send_batch.py`. Kept free of the web framework, because every
microsecond here is paid per message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from tidemill.broker.broker import Broker
from tidemill.broker.send.answers import Answers
from tidemill.core.errors import ForbiddenError, RequestError, TidemillError
from tidemill.core.model import Once
from tidemill.core.send_batch import SendColumns, decode_columns
from tidemill.core.splitting import split
from tidemill.server.http.http_errors import error_bytes, status_of
from tidemill.server.rejects import REJECTS
from tidemill.server.security.caller import caller

PATH = "/v1/send-batch"
# So many messages of several requests are stored in one go.
JOINED_MESSAGES_MAX = 4096

Refusals = list[ForbiddenError | None]


class Asked(NamedTuple):
    """A request that was read."""

    columns: SendColumns
    refusals: Refusals | None  # None: its caller may send all of it


class SendBatchService:
    """Serves requests in columns. Thread-safe."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def read(self, content: bytes) -> Asked:
        """The sends of the current user's request; raises if it cannot be parsed."""
        columns = decode_columns(content)
        return Asked(columns, self.refusals(columns))

    def answers(self, asked: Sequence[Asked]) -> list[tuple[int, bytes]]:
        """Status and content of the answers to these requests, as many as may be stored in one go."""
        answers: list[tuple[int, bytes]] = []
        # In parts of bounded size, so that none waits long for the sends of others.
        for part in split(asked, len(asked), JOINED_MESSAGES_MAX, lambda one: len(one.columns)):
            answers.extend(self._answers_of_part(part))
        return answers

    def _answers_of_part(self, asked: Sequence[Asked]) -> list[tuple[int, bytes]]:
        allowed = [one.columns for one in asked if one.refusals is None]
        try:
            stored: Iterator[Answers | TidemillError] = iter(self.store(allowed) if allowed else [])
        except TidemillError as error:
            stored = repeat(error)
        return [self._answer(next(stored) if one.refusals is None else self._partly(one)) for one in asked]

    def _partly(self, asked: Asked) -> Answers | TidemillError:
        """The answers of a request with refused messages: its errors do not affect other requests."""
        assert asked.refusals is not None
        try:
            return self.store_allowed(asked.columns, asked.refusals)
        except TidemillError as error:
            return error

    def _answer(self, answers: Answers | TidemillError) -> tuple[int, bytes]:
        if isinstance(answers, TidemillError):
            return status_of(answers), error_bytes(answers)
        return 200, self.encoded(answers)

    def refusals(self, columns: SendColumns) -> Refusals | None:
        """Which messages the caller may not send; None where it may send all."""
        user = caller()
        if user is None:
            return None
        replaces = columns.once is not None and Once.REPLACE.value in columns.once
        if not any(user.refusal_to_send(topic, replaces=replaces) for topic in columns.topics):
            return None
        drafts = columns.drafts()
        return [user.refusal_to_send(d.topic, replaces=d.once is Once.REPLACE) for d in drafts]

    def store(
        self, requests: Sequence[SendColumns], errors: Mapping[int, RequestError] | None = None
    ) -> list[Answers]:
        """Store the sends of several requests in one call; `errors`: of messages not to be stored."""
        try:
            return (
                self._broker.send_columns(requests, errors) if errors else self._broker.send_columns(requests)
            )
        except UnicodeError as error:
            if len(requests) > 1:  # nothing was stored; the text is in one of them, and the others are sound
                return [self.store([request])[0] for request in requests]
            refusal = RequestError(f"a text is not valid Unicode: {error.reason}")  # type: ignore[attr-defined]
            return [Answers.refused(len(requests[0]), refusal)]

    def store_allowed(self, columns: SendColumns, refusals: Refusals) -> Answers:
        """Store what is not refused; a message for another topic is refused alone."""
        errors = {row: refusal for row, refusal in enumerate(refusals) if refusal is not None}
        return self.store([columns], errors)[0]

    def encoded(self, answers: Answers) -> bytes:
        if answers.errors:
            for refusal in answers.errors.values():
                REJECTS.add("http", refusal.code)
        return answers.encoded(self._broker.id)
