"""The admin API's operations for failed messages: retry, move to dead letters, list and resend dead letters.

Owns their models and translates between those and the broker's values, nothing more. All run in the server's
thread pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from tidemill.broker.broker import Broker
from tidemill.broker.consume.dead_letters import DeadLetter
from tidemill.broker.consume.retries import SendBackAnswer, SentBack
from tidemill.core.errors import RequestError
from tidemill.core.limits import ANSWER_BYTES_MAX, FRAME_ROWS_MAX, MAX_DELAY_MS
from tidemill.core.property_names import split_properties
from tidemill.server.http.http_consuming import require_ack_tokens
from tidemill.server.http.http_messages import body_out
from tidemill.server.http.http_models import (
    AS_TEXT,
    AS_TIME,
    LOOK_COUNT_MAX,
    AckTokensIn,
    Name,
    Out,
    Request,
    Token,
)
from tidemill.server.response_budget import BodiesRoute, reserve
from tidemill.server.security.caller import ADMIN, LOOK, may, require

_LEVEL_MAX = 1 << 31


class SendBackIn(AckTokensIn):
    """Deliveries to return; they are delivered again after the delay of a level."""

    level: Annotated[int, Field(ge=-1, le=_LEVEL_MAX)] = Field(
        0, description="0: the pause of the group's table; -1: to the dead letters"
    )


class RetryIn(AckTokensIn):
    """Deliveries that failed; they are tried again where they are."""

    delay_ms: Annotated[int, Field(ge=0, le=MAX_DELAY_MS)] | None = Field(
        None, description="null: the pause of the group's table after this attempt"
    )


class SentBackOut(Out):
    answer: SendBackAnswer
    deliver_at_ms: Annotated[int | None, AS_TIME]
    handle: Annotated[str | None, AS_TEXT] = Field(
        description="to cancel or reschedule it by; null where it stays in its queue"
    )
    note: str = ""


class SendBackOut(Out):
    answers: list[SentBackOut]


class DeadLetterOut(Out):
    message_id: str = Field(validation_alias="id")
    group: str
    topic: str = Field(description="the topic it was sent to")
    body: str | None
    body_base64: str | None
    keys: list[str]
    tag: str
    properties: dict[str, str] = Field(description="as the sender gave them")
    broker_properties: dict[str, str] = Field(description="what the broker adds")
    attempts: int
    died_at_ms: int
    stored_at_ms: int
    queue: int = Field(validation_alias="queue_id")
    offset: int


class DeadLetterListOut(Out):
    dead_letters: list[DeadLetterOut]


class ResendIn(Request):
    """Which letters of a group: those with these ids, or all."""

    group: Name
    ids: Annotated[list[Token], Field(max_length=FRAME_ROWS_MAX)] | None = None
    all: bool = False


class ResentOut(Out):
    resent: int


def retry_routes(broker: Broker) -> APIRouter:
    """Routes for what failed."""
    routes = APIRouter(prefix="/v1", tags=["retries"])

    @routes.post("/send-back", response_model=SendBackOut)
    def send_back(request: SendBackIn) -> SendBackOut:
        """Return deliveries; each is delivered again, to its group alone, after the delay of a level."""
        require_ack_tokens(broker, request.ack_tokens)
        return _answers_out(broker.send_back(request.ack_tokens, request.level))

    @routes.post("/retry", response_model=SendBackOut)
    def retry(request: RetryIn) -> SendBackOut:
        """Report failed deliveries: each is retried after its group's pause, the last one dead-lettered."""
        require_ack_tokens(broker, request.ack_tokens)
        return _answers_out(broker.retry(request.ack_tokens, request.delay_ms))

    @routes.post("/dead-letters/resend", response_model=ResentOut)
    def resend(request: ResendIn) -> ResentOut:
        """Give dead letters to their group once more, with all attempts before them.

        Letters of topics that the caller may not administer for this group stay where they are.
        """
        require(ADMIN, group=request.group)
        if (request.ids is None) != request.all:
            raise RequestError("give either ids, or all = true")
        # As to reset the group in a topic, which also lets it have messages again.
        resent = broker.dead_letters.resend(
            request.group,
            request.ids,
            accepts_topic=lambda topic: may(ADMIN, topic=topic, group=request.group),
        )
        return ResentOut(resent=resent)

    return routes


def _answers_out(answers: Sequence[SentBack]) -> SendBackOut:
    return SendBackOut(answers=list(map(SentBackOut.of, answers)))


def letter_routes(broker: Broker) -> APIRouter:
    """Routes that show what failed."""
    routes = APIRouter(prefix="/v1", tags=["retries"], route_class=BodiesRoute)

    @routes.get("/dead-letters", response_model=DeadLetterListOut)
    def dead_letters(
        group: Name | None = None, limit: Annotated[int, Query(ge=1, le=LOOK_COUNT_MAX)] = 100
    ) -> DeadLetterListOut:
        """Dead letters that were not resent, of one group or of all, up to 16 MiB.

        Oldest first, and only of topics that the caller may look at.
        """
        if group is not None:
            require(LOOK, group=group)
        names = (
            [group] if group is not None else [g for g in broker.dead_letters.groups() if may(LOOK, group=g)]
        )
        found: list[DeadLetter] = []
        bytes_left = ANSWER_BYTES_MAX
        for name in names:
            if len(found) < limit and bytes_left > 0:
                letters = broker.dead_letters.waiting(
                    name,
                    limit=limit - len(found),
                    bytes_max=bytes_left,
                    accepts_topic=lambda topic: may(LOOK, topic=topic),
                )
                bytes_left -= sum(len(letter.message.body) for letter in letters)
                found += letters
        reserve(letter.message.body for letter in found)
        found.sort(key=lambda letter: letter.died_at_ms)
        return DeadLetterListOut(dead_letters=[_letter_out(letter) for letter in found])

    return routes


def _letter_out(letter: DeadLetter) -> DeadLetterOut:
    message = letter.message
    text, encoded = body_out(message.body)
    own, added = split_properties(message.properties)
    return DeadLetterOut.of(
        letter, message, body=text, body_base64=encoded, properties=own, broker_properties=added
    )
