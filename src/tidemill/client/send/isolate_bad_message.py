"""Splits a request that was refused because one of its messages cannot be encoded.

The broker checks and answers messages one by one. But a field of the wrong type (a number for a tag, a lone
surrogate) makes the whole request invalid. Then its halves are sent, and their halves: the valid messages get
their own answers, and the invalid one its error. Nothing was stored of a request that was refused, and ids
make a repeat harmless.

An entry that is no message at all, such as the error of a row of a table, is not sent: it is set aside first,
and answered in its place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tidemill.client.send.request_limits import in_requests
from tidemill.core.draft_kinds import check_kinds
from tidemill.core.durations import format_duration
from tidemill.core.errors import (
    ForbiddenError,
    IllegalDelayError,
    RequestError,
    TidemillError,
    UnauthorizedError,
)
from tidemill.core.limits import MAX_DELAY_MS, TIME_MS_MAX
from tidemill.core.model import Draft
from tidemill.core.send_answers import Answer
from tidemill.core.send_batch import NOT_A_BATCH, encode_drafts

_NOT_OF_A_MESSAGE = (UnauthorizedError, ForbiddenError)  # who calls is not a message's fault


def encoded(drafts: Sequence[Draft]) -> bytes:
    """A request that sends these drafts; `RequestError` if one of them cannot travel."""
    try:
        return encode_drafts(drafts)
    except UnicodeError:
        raise RequestError(
            "a text of the message is not valid Unicode: it has half a surrogate pair"
        ) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RequestError(f"the message cannot be sent as it is: {error}") from None


def send_parted(send: Callable[[Sequence[Draft]], Sequence[Answer]], drafts: Sequence[Draft]) -> list[Answer]:
    """The answers of `send`, each draft's own."""
    sound = _sound(drafts)
    if len(sound) < len(drafts):
        return _in_place(drafts, send_parted(send, sound) if sound else [])
    try:
        return list(send(drafts))
    except _NOT_OF_A_MESSAGE:
        raise
    except RequestError as fault:
        if len(drafts) < 2:
            return [_refusal(draft, fault) for draft in drafts]
    first, second = _halves(drafts)
    answers = send_parted(send, first)
    try:
        return [*answers, *send_parted(send, second)]
    except TidemillError as fault:
        return [*answers, *unanswered(fault, second)]


async def send_parted_async(
    send: Callable[[Sequence[Draft]], Awaitable[Sequence[Answer]]], drafts: Sequence[Draft]
) -> list[Answer]:
    """The same, awaited."""
    sound = _sound(drafts)
    if len(sound) < len(drafts):
        return _in_place(drafts, await send_parted_async(send, sound) if sound else [])
    try:
        return list(await send(drafts))
    except _NOT_OF_A_MESSAGE:
        raise
    except RequestError as fault:
        if len(drafts) < 2:
            return [_refusal(draft, fault) for draft in drafts]
    first, second = _halves(drafts)
    answers = await send_parted_async(send, first)
    try:
        return [*answers, *await send_parted_async(send, second)]
    except TidemillError as fault:
        return [*answers, *unanswered(fault, second)]


async def sent_in_requests(
    drafts: Iterable[Any], send: Callable[[Sequence[Draft]], Awaitable[Sequence[Answer]]]
) -> list[Answer]:
    """The answers of many drafts.

    An error that ends the call is raised while no draft has its answer. After that it is the answer of every
    draft that has none, so that no answer is lost.
    """
    answers: list[Answer] = []
    requests = in_requests(drafts)
    for request in requests:
        try:
            answers += await send(request)
        except TidemillError as fault:
            if not answers:
                raise
            for rest in (request, *requests):
                answers += unanswered(fault, rest)
    return answers


def unanswered(fault: TidemillError, drafts: Sequence[Draft]) -> list[Answer]:
    """The answers of drafts whose request failed, while others have theirs."""
    return [fault.with_traceback(None)] * len(drafts)


def _sound(drafts: Sequence[object]) -> list[Draft]:
    return [draft for draft in drafts if isinstance(draft, Draft)]


def _in_place(drafts: Sequence[object], answers: Sequence[Answer]) -> list[Answer]:
    """The answers of the sound ones, and between them what is wrong with the others."""
    said = iter(answers)
    return [next(said) if isinstance(draft, Draft) else _no_message(draft) for draft in drafts]


def _no_message(value: object) -> RequestError:
    if isinstance(value, RequestError):
        return value
    return RequestError(f"a message must be a Draft, {type(value).__name__} was given")


def _halves(drafts: Sequence[Draft]) -> tuple[Sequence[Draft], Sequence[Draft]]:
    middle = len(drafts) // 2
    return drafts[:middle], drafts[middle:]


def _refusal(draft: Draft, fault: RequestError) -> RequestError:
    """What is wrong with a message that cannot travel even alone."""
    try:
        check_kinds(draft)
    except RequestError as said:
        return said
    if draft.jitter_ms and str(fault).startswith(NOT_A_BATCH):
        return RequestError("the broker is an older version without jitter; leave it out")
    for name in ("deliver_at_ms", "delay_ms", "jitter_ms"):
        time_ms = getattr(draft, name)
        if time_ms is not None and abs(time_ms) >= TIME_MS_MAX:
            longest = f"{format_duration(MAX_DELAY_MS)} ({MAX_DELAY_MS} ms)"
            return IllegalDelayError(
                f"{name} {time_ms} is too large; a message waits at most {longest} from now"
            )
    return fault
