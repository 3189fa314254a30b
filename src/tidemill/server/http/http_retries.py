"""The admin API's operations for failed messages: nack, move to dead letters, list and resend dead letters.

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
from tidemill.broker.consume.retries import SendBackAnswer
from tidemill.core.answers import NackResult
from tidemill.core.errors import RequestError
from tidemill.core.limits import ANSWER_BYTES_MAX, FRAME_ROWS_MAX, LOOK_COUNT_MAX, MAX_DELAY_MS
from tidemill.core.property_names import split_properties
from tidemill.server.http.http_consuming import require_ack_tokens
from tidemill.server.http.http_messages import body_out
from tidemill.server.http.http_models import (
    AS_TEXT,
    AckTokensIn,
    Name,
    Out,
    Request,
    SettledOut,
    Token,
)
from tidemill.server.response_budget import BodiesRoute, reserve
from tidemill.server.security.caller import ADMIN, LOOK, may, require

_LEVEL_MAX = 1 << 31


class NackIn(AckTokensIn):
    """Deliveries that failed. At most one of `delay_ms` and `level`."""

    delay_ms: Annotated[int, Field(ge=0, le=MAX_DELAY_MS)] | None = Field(
        None, description="null: the pause of the group's table after this attempt"
    )
    level: Annotated[int, Field(ge=0, le=_LEVEL_MAX)] | None = Field(
        None,
        description="scheduled anew for the group, after the delay of this level; 0: the pause of its table",
    )


class NackedOut(Out):
    answer: SendBackAnswer
    deliver_at_ms: int | None
    handle: Annotated[str | None, AS_TEXT] = Field(
        description="to cancel or reschedule it by; null where it stays in its queue"
    )
    note: str = ""


class NackOut(Out):
    answers: list[NackedOut]


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

    @routes.post("/nack", response_model=NackOut)
    def nack(request: NackIn) -> NackOut:
        """Report failed deliveries: each is delivered again after its pause, or dead-lettered at its last."""
        require_ack_tokens(broker, request.ack_tokens)
        if request.level is None:
            return _answers_out(broker.retry(request.ack_tokens, request.delay_ms))
        if request.delay_ms is not None:
            raise RequestError("give delay_ms or level, not both")
        return _answers_out(broker.send_back(request.ack_tokens, request.level))

    @routes.post("/dead-letters", response_model=SettledOut)
    def dead_letter(request: AckTokensIn) -> SettledOut:
        """Move deliveries to the dead letters of their groups, whatever attempts are left."""
        require_ack_tokens(broker, request.ack_tokens)
        return SettledOut(settled=broker.dead_letter(request.ack_tokens))

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


def _answers_out(answers: Sequence[NackResult]) -> NackOut:
    return NackOut(answers=list(map(NackedOut.of, answers)))


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
