"""`AsyncClient`: the client for asyncio. The same as `Client`, awaited.

async with tidemill.AsyncClient() as client:
    result = await client.send("orders", b"close order 17", delay="30m")
    async for message in client.receive("orders", group="closers"):
        ...
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tidemill.client import retry_verbs, verbs
from tidemill.client.answers import (
    Backup,
    BrokerStatus,
    DeadLetter,
    GroupInfo,
    Holds,
    Message,
    Minute,
    Pending,
    SentBack,
    TopicInfo,
)
from tidemill.client.arguments import (
    ack_token_of,
    can_come_back,
    optional_ms,
    optional_time,
    policy_of,
    timeout_of,
    token_of,
    unreachable,
)
from tidemill.client.async_change_verbs import AsyncChangeVerbs
from tidemill.client.async_consume_verbs import AsyncConsumeVerbs
from tidemill.client.damage_verbs import AsyncDamageVerbs
from tidemill.client.send.async_coalescer import AsyncCoalescer
from tidemill.client.send.drafts import Body, draft_of, with_id
from tidemill.client.send.isolate_bad_message import encoded, send_parted_async
from tidemill.client.send.request_limits import in_requests
from tidemill.client.tables.async_table_verbs import TABLES_AT_ONCE, AsyncTableVerbs
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.transport.async_connection import AsyncPool, connect
from tidemill.client.transport.close_signal import Closing
from tidemill.client.transport.connection import ConnectionLostError
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT, Endpoint, request_head
from tidemill.client.transport.forking import in_a_forked_child
from tidemill.client.transport.retrying import Patience, busy_ones, error_in, is_worth_a_retry
from tidemill.client.transport.unix_transport import AsyncUnixTransport
from tidemill.client.verbs import Call
from tidemill.core.draft_kinds import check_kinds
from tidemill.core.durations import Moment, Span, as_duration_ms, as_time_ms
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.holds import Held
from tidemill.core.model import Draft, Once, SendResult, TopicType
from tidemill.core.send_answers import Answer, decode_answers
from tidemill.core.send_batch import CONTENT_TYPE

T = TypeVar("T")
_JSON = "application/json"
_GET = b"GET "
_BATCH_PATH = "/v1/send-batch"


class AsyncClient(AsyncConsumeVerbs, AsyncTableVerbs, AsyncChangeVerbs, AsyncDamageVerbs):
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
        in_a_forked_child(self, AsyncClient._begin_in_child)

    def _begin_tables(self) -> None:
        self._closing = Closing()
        self._flight = FlightLink(self.endpoint, self._token, self._policy, self._health, self._closing)

    def _begin(self) -> None:
        self._pool = AsyncPool(lambda: connect(self.endpoint))
        self._unix_transport = AsyncUnixTransport(self.endpoint, self._pool)
        self._coalescer = AsyncCoalescer(self._send_batch)
        self._tables_at_once = asyncio.Semaphore(TABLES_AT_ONCE)

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

    async def send_many(self, drafts: Iterable[Draft]) -> list[SendResult | TidemillError]:
        """Send many messages in as few requests as possible; each has its own answer, in order."""
        answers: list[SendResult | TidemillError] = []
        for part in in_requests(drafts):
            answers.extend(await self._until_taken(part, await self._send_batch(part)))
        return answers

    async def _until_taken(self, drafts: Sequence[Draft], first: Sequence[Answer]) -> list[Answer]:
        """The answers when none is a refusal for now only any more, or waiting has been in vain."""
        answers, patience = list(first), Patience(self._policy)
        while again := busy_ones(answers):
            wait_s = patience.wait_s()
            if wait_s is None or self._is_closed:
                break
            await asyncio.sleep(wait_s)
            answered = await self._send_batch([drafts[index] for index in again])
            for index, answer in zip(again, answered, strict=True):
                answers[index] = answer
        return answers

    async def _send_batch(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        return await send_parted_async(self._send_whole, drafts)

    async def _send_whole(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        self._bind_to_loop()
        way, timeout_s = self._unix_transport, self._timeout_s
        patience = Patience(self._policy)
        content = await self._carry(way, self._batch_head, encoded(drafts), timeout_s, patience)
        return decode_answers(content, drafts)

    # -- what failed ------------------------------------------------------------------------------

    async def retry(self, *messages: Message | str, delay: Span | None = None) -> list[SentBack]:
        """Report that messages failed, as `Client.retry` explains."""
        return await self._ask(retry_verbs.retry([ack_token_of(message) for message in messages], delay))

    async def send_back(self, *messages: Message | str, level: int = 0) -> list[SentBack]:
        """Return messages, for redelivery to this group after a level's delay; -1: to the dead letters."""
        return await self._ask(retry_verbs.send_back([ack_token_of(message) for message in messages], level))

    async def dead_letters(self, group: str | None = None, *, limit: int = 100) -> list[DeadLetter]:
        """Messages that a group (or any) gave up on, oldest first."""
        return await self._ask(retry_verbs.dead_letters(group, limit))

    async def resend_dead_letters(self, group: str, ids: Sequence[str] | None = None) -> int:
        """Resend dead letters (None: all) to their group; returns how many."""
        return await self._ask(retry_verbs.resend_dead_letters(group, ids))

    # -- looking ----------------------------------------------------------------------------------

    async def pending(
        self,
        topic: str | None = None,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        limit: int = 100,
    ) -> list[Pending]:
        """Messages that wait, earliest due first."""
        return await self._ask(verbs.pending(topic, key, optional_time(start), optional_time(end), limit))

    async def forecast(self, topic: str | None = None, *, horizon: Span = "1h") -> list[Minute]:
        """How many messages fall due in each minute."""
        return await self._ask(verbs.forecast(topic, as_duration_ms(horizon)))

    async def status(self) -> BrokerStatus:
        """The broker's state: its clock, counts, lateness and timer runner."""
        return await self._ask(verbs.status())

    async def find(self, topic: str, key: str) -> list[dict[str, Any]]:
        """Messages with a key, waiting or delivered, newest first."""
        return await self._ask(verbs.find(topic, key))

    # -- topics, groups, levers -------------------------------------------------------------------

    async def topics(self) -> list[TopicInfo]:
        """Every topic that you may look at, with its counts."""
        return await self._ask(verbs.topics())

    async def create_topic(
        self,
        name: str,
        type: TopicType | str = TopicType.MIXED,  # noqa: A002 - the name people look for
        *,
        queues: int | None = None,
    ) -> TopicInfo:
        """Make a topic; the same again is no error."""
        return await self._ask(verbs.create_topic(name, type, queues))

    async def delete_topic(self, name: str, *, force: bool = False) -> int:
        return await self._ask(verbs.delete_topic(name, force))

    async def pause_topic(self, name: str) -> TopicInfo:
        """Hold a topic's releases; what falls due meanwhile goes when it is resumed."""
        return await self._ask(verbs.pause_topic(name))

    async def resume_topic(self, name: str) -> TopicInfo:
        """Let a topic's releases go on."""
        return await self._ask(verbs.resume_topic(name))

    async def limit_topic(self, name: str, per_second: int) -> TopicInfo:
        return await self._ask(verbs.limit_topic(name, per_second))

    async def hold(self, what: Held | str) -> Holds:
        """Hold the whole broker's `releases`, or `absorbing` (what its timer takes in), until resumed."""
        return await self._ask(verbs.hold(what))

    async def resume(self, what: Held | str) -> Holds:
        """End a hold of `releases` or `absorbing`; what fell due meanwhile goes at once."""
        return await self._ask(verbs.resume(what))

    async def groups(self) -> list[GroupInfo]:
        """Every consumer group that you may look at: its settings and how far behind it is."""
        return await self._ask(verbs.groups())

    async def set_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        is_fifo: bool | None = None,
        start: str | None = None,
        backoff: str | None = None,
    ) -> GroupInfo:
        """Make a group, or change what is given; the rest stays."""
        return await self._ask(verbs.set_group(name, max_attempts, is_fifo, start, backoff))

    async def reset_group(self, name: str, topic: str, to: Moment) -> None:
        """Let a group read a topic again from the messages released at a time."""
        await self._ask(verbs.reset_group(name, topic, as_time_ms(to)))

    async def advance(self, by: Span | None = None, *, to: Moment | None = None) -> int:
        """Move a simulated clock; returns the new time."""
        return await self._ask(verbs.advance(optional_ms(by), optional_time(to)))

    async def backup(self, directory: str) -> Backup:
        """Copy the live broker into a new directory on its machine."""
        return await self._ask(verbs.backup(directory))

    async def backup_progress(self) -> tuple[int, int]:
        """Bytes copied by the backup under way, and to copy; both 0 while there is none."""
        return await self._ask(verbs.backup_progress())

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
