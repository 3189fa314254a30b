"""The admin API's operations on messages: send, cancel, reschedule (consumers': `http_consuming.py`).

Translates between the API's models and the broker's values, nothing more. The functions run in the server's
thread pool.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Request

from tidemill.broker.broker import Broker
from tidemill.broker.change.canceller import Chosen, NewTime, To
from tidemill.broker.send.answers import Answer
from tidemill.core.errors import IllegalHandleError, IllegalRequestIdError, RequestError
from tidemill.core.model import CancelAnswer, Draft, Handle, Once, SendResult
from tidemill.core.request_ids import REQUEST_ID_NAME, RequestKey, request_key
from tidemill.server.http.http_models import (
    AnswerOut,
    CancelOut,
    ChoiceIn,
    ErrorAnswer,
    ManyIn,
    ManyOut,
    MessageIn,
    MovedOut,
    RescheduleIn,
    RescheduleOut,
    SendResultOut,
)
from tidemill.server.rejects import REJECTS
from tidemill.server.security.caller import CANCEL, SEND, caller, require, require_send

_SEQ_MAX = 1 << 62
_REQUEST_ID_HEADER = REQUEST_ID_NAME.decode()
_IdempotencyKey = Annotated[
    str | None,
    Header(
        description="1 to 255 visible ASCII characters: a repeated request with the same key gets the first "
        "answer, for an hour"
    ),
]


async def _request_key(request: Request, idempotency_key: _IdempotencyKey = None) -> RequestKey | None:
    """The key of the header, which belongs to its caller alone."""
    if idempotency_key is None:
        return None
    count = len(request.headers.getlist(_REQUEST_ID_HEADER))
    if count > 1:
        raise IllegalRequestIdError(
            f"the request has {count} Idempotency-Key headers, the limit is 1; nothing was changed. "
            "Send one header, with the id of this request"
        )
    user = caller()
    return request_key(idempotency_key, "" if user is None else user.name)


GivenRequestKey = Annotated[RequestKey | None, Depends(_request_key)]
_UNMOVED: dict[CancelAnswer, Literal["released", "already-cancelled", "unknown", "damaged"]] = {
    CancelAnswer.RELEASED: "released",
    CancelAnswer.ALREADY_CANCELLED: "already-cancelled",
    CancelAnswer.UNKNOWN: "unknown",
    CancelAnswer.DAMAGED: "damaged",
}


def send_routes(broker: Broker) -> APIRouter:
    """Routes for producers."""
    routes = APIRouter(prefix="/v1", tags=["messages"])

    @routes.post("/messages", response_model=SendResultOut)
    def send(message: MessageIn) -> SendResultOut:
        """Send one message; durable when answered. A missing topic is created."""
        return result_out(broker.send([_allowed(message)])[0])

    @routes.post("/messages/many", response_model=ManyOut)
    def send_many(request: ManyIn) -> ManyOut:
        """Send many messages; each gets its own answer, or with `all_or_none` one wrong refuses all."""
        for topic in {message.topic for message in request.messages}:
            require(SEND, topic=topic)
        if request.all_or_none:
            results = broker.send([_allowed(message) for message in request.messages])
            return ManyOut(answers=[AnswerOut(result=result_out(result)) for result in results])
        answers = []
        for answer in _sent_each(broker, request.messages):
            if isinstance(answer, SendResult):
                answers.append(AnswerOut(result=result_out(answer)))
            else:
                REJECTS.add("http", answer.code)
                answers.append(AnswerOut(error=ErrorAnswer(code=answer.code, message=str(answer))))
        return ManyOut(answers=answers)

    return routes


def change_routes(broker: Broker) -> APIRouter:
    """Routes that cancel and reschedule."""
    routes = APIRouter(prefix="/v1", tags=["messages"])

    @routes.post("/cancel", response_model=CancelOut)
    def cancel(request: ChoiceIn, request_id: GivenRequestKey) -> CancelOut:
        """Cancel by handles, by key, or by a range of due times; every answer is definite."""
        if request.handles is not None:
            answers = broker.cancel(_handles(request), request_id=request_id)
            count = sum(answer is CancelAnswer.CANCELLED for answer in answers)
            return CancelOut(cancelled=count, answers=answers)
        count = broker.cancel_where(_topic(request), **_where(request), request_id=request_id)
        return CancelOut(cancelled=count, answers=None)

    @routes.post("/reschedule", response_model=RescheduleOut)
    def reschedule(request: RescheduleIn, request_id: GivenRequestKey) -> RescheduleOut:
        """Move messages that wait to another time, or by a span."""
        to = To(deliver_at_ms=request.deliver_at_ms, delay_ms=request.delay_ms, by_ms=request.by_ms)
        NewTime(**to)  # its errors are reported before those of the rest
        if request.handles is not None:
            moved = broker.reschedule(_handles(request), request_id=request_id, **to)
            answers = [
                MovedOut(answer="moved", handle=str(m.handle), deliver_at_ms=m.deliver_at_ms)
                if m.answer is None
                else MovedOut(answer=_UNMOVED[m.answer], handle=None, deliver_at_ms=None)
                for m in moved
            ]
            return RescheduleOut(moved=sum(m.answer is None for m in moved), answers=answers)
        count = broker.reschedule_where(_topic(request), **_where(request), request_id=request_id, **to)
        return RescheduleOut(moved=count, answers=None)

    return routes


# -- what is allowed -----------------------------------------------------------------------------


def _allowed(message: MessageIn) -> Draft:
    """The message as it is sent; raises where it cannot be, or the caller may not."""
    require_send(message.topic, replaces=message.once == Once.REPLACE.value)
    return _draft(message)


def _sent_each(broker: Broker, messages: Sequence[MessageIn]) -> list[Answer]:
    """Send what can be sent; each message has an answer of its own."""
    drafts = [_allowed_or_refusal(message) for message in messages]
    sent = [draft for draft in drafts if isinstance(draft, Draft)]
    answers = iter(broker.send_each(sent) if sent else [])
    return [next(answers) if isinstance(draft, Draft) else draft for draft in drafts]


def _allowed_or_refusal(message: MessageIn) -> Draft | RequestError:
    try:
        return _allowed(message)
    except RequestError as refusal:
        return refusal


# -- shapes ---------------------------------------------------------------------------------------


def _draft(message: MessageIn) -> Draft:
    return Draft(
        topic=message.topic,
        body=_body(message),
        deliver_at_ms=message.deliver_at_ms,
        delay_ms=message.delay_ms,
        level=message.level,
        id=message.id,
        keys=tuple(message.keys),
        tag=message.tag,
        message_group=message.message_group,
        properties=message.properties,
        once=Once(message.once),
        jitter_ms=message.jitter_ms,
    )


def _body(message: MessageIn) -> bytes:
    try:
        if message.body_base64 is None:
            if "body" not in message.model_fields_set:
                raise RequestError(
                    "the message has no body; give `body` (a text, which may be empty) or `body_base64`"
                )
            return message.body.encode()
        if message.body:
            raise RequestError("give either body or body_base64")
        return base64.b64decode(message.body_base64, validate=True)
    except UnicodeEncodeError as error:
        raise RequestError(f"the body is not valid Unicode: {error.reason}; use body_base64") from None
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"body_base64 is not base64: {error}") from None


def result_out(result: SendResult) -> SendResultOut:
    return SendResultOut.of(result)


def body_out(body: bytes) -> tuple[str | None, str | None]:
    """A body as text if it is text, else in base64."""
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()


def _handles(request: ChoiceIn) -> list[Handle]:
    others = (request.topic, request.key, request.from_ms, request.to_ms)
    if any(value is not None for value in others):
        raise RequestError("give either handles, or a topic with a key or a range")
    handles = [Handle.parse(text) for text in request.handles or ()]
    for topic in {handle.topic for handle in handles}:
        require(CANCEL, topic=topic)
    for handle in handles:
        if not -1 <= handle.seq < _SEQ_MAX:
            raise IllegalHandleError(f"not a handle: its seq is {handle.seq}; pass the handle of the send")
    return handles


def _topic(request: ChoiceIn) -> str:
    if request.topic is None:
        raise RequestError("give handles, or a topic with a key or a range")
    require(CANCEL, topic=request.topic)
    return request.topic


def _where(request: ChoiceIn) -> Chosen:
    if request.key is None and (request.from_ms is None or request.to_ms is None):
        raise RequestError("a range needs both from_ms and to_ms; or give a key")
    return Chosen(key=request.key, from_ms=request.from_ms, to_ms=request.to_ms)
