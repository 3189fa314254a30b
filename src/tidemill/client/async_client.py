"""`AsyncClient`: the client for asyncio. The same as `Client`, awaited.

async with tidemill.AsyncClient() as client:
    result = await client.send("orders", b"close order 17", delay="30m")
    async for message in client.receive("orders", group="closers"):
        ...
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from tidemill.client.arguments import can_come_back, policy_of, timeout_of, token_of, unreachable
from tidemill.client.calls import Call
from tidemill.client.operations import Carrier, Operations, health
from tidemill.client.send.async_coalescer import AsyncCoalescer
from tidemill.client.send.drafts import Body, draft_of, with_id
from tidemill.client.send.isolate_bad_message import encoded, send_parted_async, sent_in_requests
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.transport.async_connection import AsyncPool, connect
from tidemill.client.transport.blocking_calls import in_own_thread, on_the_loop
from tidemill.client.transport.close_signal import Closing
from tidemill.client.transport.connection import ConnectionLostError
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT, Endpoint, request_head
from tidemill.client.transport.forking import in_a_forked_child
from tidemill.client.transport.retrying import Patience, error_in, is_worth_a_retry
from tidemill.client.transport.unix_transport import AsyncUnixTransport
from tidemill.client.verb import Awaiting
from tidemill.client.verbs import Verbs, until_taken
from tidemill.core.draft_kinds import check_kinds
from tidemill.core.durations import Moment, Span
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.model import Draft, Once, SendResult
from tidemill.core.send_answers import Answer, decode_answers
from tidemill.core.send_batch import CONTENT_TYPE

T = TypeVar("T")
_TABLES_AT_ONCE: Final = 16  # each has a thread
_JSON = "application/json"
_GET = b"GET "
_BATCH_PATH = "/v1/send-batch"


class AsyncClient(Verbs[Awaiting]):
    """A connection to a broker, for one event loop at a time. Close it or use it as a context manager.

    `https://host:port` is TLS: `ca` names a file of certificates to trust, `insecure` trusts any.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        token: str = "",
        ca: str | Path = "",
        insecure: bool = False,
        timeout: Span = "10s",
        retry_for: Span = "30s",
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint, ca, is_verified=not insecure)
        self._token = token_of(token)
        self._timeout_s = timeout_of(timeout)
        self._policy = policy_of(retry_for)
        self._loop: asyncio.AbstractEventLoop | None = None  # to which what `_begin` makes belongs
        self._batch_head = request_head(self.endpoint, "POST", _BATCH_PATH, CONTENT_TYPE, self._token)
        self._begin_tables()
        self._begin()
        carrier = Carrier(
            self._ask,
            self._in_thread,
            self._send_many,
            lambda drafts: on_the_loop(self._loop, self._send_many(drafts)),
            lambda: self._flight,
            lambda: self._is_closed,
        )
        self._offer(Operations(carrier), awaits=True)
        in_a_forked_child(self, AsyncClient._begin_in_child)

    def _begin_tables(self) -> None:
        self._closing = Closing()
        self._flight = FlightLink(self.endpoint, self._token, self._policy, self._health, self._closing)

    def _begin(self) -> None:
        self._pool = AsyncPool(lambda: connect(self.endpoint))
        self._unix_transport = AsyncUnixTransport(self.endpoint, self._pool)
        self._coalescer = AsyncCoalescer(self._send_batch)
        self._tables_at_once = asyncio.Semaphore(_TABLES_AT_ONCE)

    def _begin_in_child(self) -> None:
        """The loop is the parent's, and so are the connections on it."""
        self._loop = None
        was_closed = self._is_closed
        for shared in (self._flight, self._unix_transport, self._pool):
            shared.leave_to_parent()
        self._begin_tables()
        self._begin()
        if was_closed:
            self._closing.set()

    @property
    def _is_closed(self) -> bool:
        return self._closing.is_set()

    # -- sending ----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        delay: Span | None = None,
        at: Moment | None = None,
        jitter: Span | None = None,
        level: int = 0,
        key: str | None = None,
        keys: Sequence[str] = (),
        tag: str = "",
        message_group: str = "",
        properties: Mapping[str, str] | None = None,
        once: bool | str | Once = False,
        id: str | None = None,  # noqa: A002 - the name people look for
    ) -> SendResult:
        """Send one message, durably; raises what is wrong with it."""
        return await self._send(
            draft_of(
                topic, body, delay, at, level, key, keys, tag, message_group, properties, once, id, jitter
            )
        )

    async def send_draft(self, draft: Draft) -> SendResult:
        """Send a message made beforehand."""
        check_kinds(draft)
        return await self._send(with_id(draft))

    async def _send(self, draft: Draft) -> SendResult:
        self._bind_to_loop()
        answer = await self._coalescer.send(draft)
        if not isinstance(answer, SendResult):
            # It waits for itself: those it travelled with have their answers.
            answer = (await self._until_taken([draft], [answer]))[0]
        if isinstance(answer, SendResult):
            return answer
        try:
            raise answer
        finally:
            del answer  # which would hold itself, by the frame it is raised from

    async def _send_many(self, drafts: Iterable[Draft]) -> list[Answer]:
        async def send(part: Sequence[Draft]) -> Sequence[Answer]:
            return await self._until_taken(part, await self._send_batch(part))

        return await sent_in_requests(drafts, send)

    async def _until_taken(self, drafts: Sequence[Draft], first: Sequence[Answer]) -> list[Answer]:
        async def pause(wait_s: float) -> bool:
            if not self._is_closed:
                await asyncio.sleep(wait_s)
            return self._is_closed

        return await until_taken(drafts, first, self._policy, pause, self._send_batch)

    async def _send_batch(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        return await send_parted_async(self._send_whole, drafts)

    async def _send_whole(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        self._bind_to_loop()
        way, timeout_s = self._unix_transport, self._timeout_s
        patience = Patience(self._policy)
        content = await self._carry(way, self._batch_head, encoded(drafts), timeout_s, patience)
        return decode_answers(content, drafts)

    # -- carrying ---------------------------------------------------------------------------------

    async def _ask(self, call: Call[T]) -> T:
        content_type = _JSON if call.content else ""
        head = request_head(self.endpoint, call.method, call.path, content_type, self._token, call.request_id)
        timeout_s = self._timeout_s + call.patience_s
        self._bind_to_loop()
        patience = Patience(self._policy, has_request_id=bool(call.request_id))
        said = await self._carry(self._pool, head, call.content, timeout_s, patience, call.is_repeatable)
        return call.read(json.loads(said))

    async def _carry(
        self,
        way: AsyncPool | AsyncUnixTransport,
        head: bytes,
        content: bytes,
        timeout_s: float,
        patience: Patience,
        is_repeatable: bool = True,
    ) -> bytes:
        """A request there and its answer back, tried again while that can help."""
        while True:
            fault: TidemillError
            try:
                answer = await way.exchange(head, content, timeout_s, is_repeatable=is_repeatable)
            except ConnectionLostError as lost:
                fault = unreachable(self.endpoint, lost, is_read=head.startswith(_GET))
                can_help = (is_repeatable or not lost.was_sent) and can_come_back(lost)
            else:
                if 200 <= answer.status < 300:
                    return answer.content
                fault = error_in(answer.status, answer.content)
                can_help = is_worth_a_retry(answer.status, is_repeatable=is_repeatable)
            wait_s = patience.wait_s() if can_help else None
            if wait_s is None or self._is_closed:
                try:
                    raise fault
                finally:
                    del fault  # as in `_send`
            await asyncio.sleep(wait_s)

    def _bind_to_loop(self) -> None:
        """Connections belong to an event loop: on another one, after theirs has ended, new ones are made."""
        if self._is_closed:
            raise RequestError("this client is closed; make another one")
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RequestError("this AsyncClient is in use on another event loop; make one for each loop")
        if self._loop is not None:
            self._begin()
        self._loop = loop

    async def _in_thread(self, act: Callable[..., T], *args: Any) -> T:
        """The result of a function that blocks, and may itself wait for the loop.

        A task that is cancelled does not wait for it; it still runs to its end.
        """
        self._bind_to_loop()
        async with self._tables_at_once:
            return await in_own_thread(act, *args)

    def _health(self) -> dict[str, Any]:
        """The broker's `/healthz`. In a thread."""
        return on_the_loop(self._loop, self._ask(health()))

    async def close(self) -> None:
        """Close the connections; calls that wait for a retry fail at their next attempt."""
        self._closing.set()
        self._unix_transport.close()
        self._pool.close()
        self._flight.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
