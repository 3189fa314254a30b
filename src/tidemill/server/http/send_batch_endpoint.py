"""The fast endpoint for many sends: `POST /v1/send-batch`, plain ASGI, one frame for concurrent requests.

Requests that arrive while the broker is busy are joined into one call of `send_batch_service.py`, so several
clients share a frame and a sync; each request gets the answers of its own messages. An answer also names the
Unix socket for clients on this machine (`unix_listener.py`), if there is one.

Invariant: no more than the limit of bytes is gathered for a request, whatever length it announces.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tidemill.broker.send.answers import Answers
from tidemill.core.addresses import UNIX_SOCKET_HEADER
from tidemill.core.errors import BodyTooLargeError, RequestError, TidemillError
from tidemill.core.limits import FRAME_BYTES_MAX
from tidemill.core.send_batch import SendColumns, decode_columns
from tidemill.server.asgi import Receive, Scope, Send, answer
from tidemill.server.batching import Batcher
from tidemill.server.http.http_errors import error_bytes, status_of
from tidemill.server.send_batch_service import JOINED_MESSAGES_MAX, SendBatchService

_JOINED_MAX = 64


class SendBatchEndpoint:
    """The ASGI application behind one path."""

    def __init__(self, service: SendBatchService, executor: ThreadPoolExecutor) -> None:
        self._service = service
        self._executor = executor
        self._headers: list[tuple[bytes, bytes]] = []
        self._batcher: Batcher[SendColumns, Answers] = Batcher(
            service.store,
            executor,
            in_flight_max=1,  # what comes meanwhile is joined, which saves more than overlapping gains
            batch_max=_JOINED_MAX,
            size_max=JOINED_MESSAGES_MAX,
            size_of=len,
        )

    def point_to(self, socket_name: str) -> None:
        """Announce the name of the Unix socket in answers from now on."""
        self._headers = [(UNIX_SOCKET_HEADER.encode(), socket_name.encode())]

    async def _stored(self, columns: SendColumns) -> Answers:
        refusals = self._service.refusals(columns)
        if refusals is None:
            return await self._batcher.submit(columns)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._service.store_allowed, columns, refusals)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            columns = decode_columns(await _body(receive))
            answers = await self._stored(columns) if len(columns) else Answers.refused(0)
            status, content = 200, self._service.encoded(answers)
        except TidemillError as error:
            status, content = status_of(error), error_bytes(error)
        await answer(send, status, content, headers=self._headers)


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
            raise BodyTooLargeError(f"a batch has over {FRAME_BYTES_MAX} bytes; send it in parts")
    return b"".join(parts)
