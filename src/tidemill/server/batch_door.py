"""The quick way in for many sends at once: `POST /v1/send-batch`, plain ASGI, one frame for all who wait.

Reads the form of `core/send_batch.py` and answers in it. Requests that arrive while the broker is busy are
joined into one call of `send_columns`, so several clients share a frame and a sync; each request gets its own
messages' answers. Kept free of the web framework, because here every microsecond is paid per message.

Invariant: no more than the limit of bytes is gathered for a request, whatever length it announces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.column_send import Answers, PlainAnswers
from tidemill.broker.sender import Answer
from tidemill.core.errors import BodyTooLarge, RequestError, TidemillError
from tidemill.core.limits import FRAME_BYTES_MAX
from tidemill.core.model import Draft
from tidemill.core.send_batch import SendColumns, decode_columns, encode_answers, encode_plain_answers
from tidemill.server.admin_errors import error_bytes, status_of
from tidemill.server.batching import Batcher
from tidemill.server.caller import SEND, caller
from tidemill.server.rejects import REJECTS

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

PATH = "/v1/send-batch"
_JOINED_MAX = 64
_TYPE = (b"content-type", b"application/json")


class BatchDoor:
    """The ASGI application behind one path."""

    def __init__(self, broker: Broker, executor: ThreadPoolExecutor) -> None:
        self._broker = broker
        self._executor = executor
        self._batcher: Batcher[SendColumns, Answers] = Batcher(
            self._run,
            executor,
            in_flight_max=1,  # what comes meanwhile is joined, which saves more than overlapping gains
            batch_max=_JOINED_MAX,
        )

    def _run(self, requests: Sequence[SendColumns]) -> list[Answers]:
        """Store what several requests ask for in one go."""
        try:
            return self._broker.send_columns(requests)
        except UnicodeError as error:
            refusal = RequestError(f"a text is not valid Unicode: {error.reason}")  # type: ignore[attr-defined]
            return [[refusal] * len(request) for request in requests]

    async def _send(self, columns: SendColumns) -> Answers:
        """Store what the caller may send; a message for another topic is refused alone."""
        user = caller()
        if user is None or all(user.may(SEND, topic=topic) for topic in columns.topics):
            return await self._batcher.submit(columns)
        drafts = columns.drafts()
        refusals = [user.refusal(SEND, topic=draft.topic) for draft in drafts]
        allowed = [draft for draft, refusal in zip(drafts, refusals, strict=True) if refusal is None]
        answers = iter(await self._store(allowed) if allowed else [])
        return [refusal or next(answers) for refusal in refusals]

    async def _store(self, drafts: list[Draft]) -> list[Answer]:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._broker.send_each, drafts
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            columns = decode_columns(await _body(receive))
            answers = await self._send(columns) if len(columns) else []
            status, content = 200, self._answer(answers)
        except TidemillError as error:
            status, content = status_of(error), error_bytes(error)
        headers = [_TYPE, (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, answers: Answers) -> bytes:
        if isinstance(answers, PlainAnswers):
            return encode_plain_answers(self._broker.id, *answers)
        for refusal in [answer for answer in answers if isinstance(answer, TidemillError)]:
            REJECTS.add("http", refusal.code)
        return encode_answers(self._broker.id, answers)


async def _body(receive: Receive) -> bytes:
    """The whole request body, at most what fits a frame."""
    event = await receive()
    if not event.get("more_body", False):
        return bytes(event.get("body", b""))
    parts = [event.get("body", b"")]
    size = len(parts[0])
    while event.get("more_body", False):
        event = await receive()
        if event["type"] == "http.disconnect":
            raise RequestError("the request ended in the middle")
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > FRAME_BYTES_MAX:
            raise BodyTooLarge(f"a batch has over {FRAME_BYTES_MAX} bytes; send it in parts")
    return b"".join(parts)
