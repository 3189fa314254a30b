"""`Client`: the broker's verbs for programs with threads.

    with tidemill.Client() as client:
        result = client.send("orders", b"close order 17", delay="30m", key="order-17")
        client.cancel(result.handle)
        for message in client.receive("orders", group="closers"):
            ...                                    # acknowledged when the next one is asked for

One client serves any number of threads; concurrent sends are joined into one request. Lost connections, a
busy broker and one that restarts are waited out (`retry_for`), and a send that is repeated for that is
stored once. A forked process may go on using it: there it has connections of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tidemill.client.arguments import can_come_back, policy_of, timeout_of, token_of, unreachable
from tidemill.client.calls import Call
from tidemill.client.operations import Carrier, Operations, health
from tidemill.client.send.coalescer import LINGER_S, Coalescer
from tidemill.client.send.drafts import Body, draft_of, with_id
from tidemill.client.send.isolate_bad_message import encoded, send_parted, sent_in_requests
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.transport.close_signal import Closing
from tidemill.client.transport.connection import ConnectionLostError, Pool, connect
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT, Endpoint, request_head
from tidemill.client.transport.forking import in_a_forked_child
from tidemill.client.transport.retrying import Patience, error_in, is_worth_a_retry
from tidemill.client.transport.unix_transport import UnixTransport
from tidemill.client.verb import Blocking, finished
from tidemill.client.verbs import Verbs, until_taken
from tidemill.core.draft_kinds import check_kinds
from tidemill.core.durations import Moment, Span, as_duration_ms
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.model import Draft, Once, SendResult
from tidemill.core.send_answers import Answer, decode_answers
from tidemill.core.send_batch import CONTENT_TYPE

T = TypeVar("T")
_JSON = "application/json"
_GET = b"GET "
_BATCH_PATH = "/v1/send-batch"


class BlockingVerbs(Verbs[Blocking]):
    """The verbs of a client that blocks, with `send` in the quickest way."""

    def send(
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
        """Send one message, durably; raises what is wrong with it.

        `delay` counts on the broker's clock. `once` (with a key): while a message with that key waits,
        it is answered instead; `once="replace"` moves it to the new time. `jitter` moves the time of
        `delay` or `at` later, by chance, by at most so much.
        """
        return self._send(
            draft_of(
                topic, body, delay, at, level, key, keys, tag, message_group, properties, once, id, jitter
            )
        )

    def send_draft(self, draft: Draft) -> SendResult:
        """Send a message made beforehand."""
        check_kinds(draft)
        return self._send(with_id(draft))

    def _send(self, draft: Draft) -> SendResult:
        raise NotImplementedError

    def close(self) -> object:
        """Close it; what is called afterwards fails."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(BlockingVerbs):
    """A connection to a broker. Thread-safe; close it or use it as a context manager.

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
        linger: Span = "2ms",
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint, ca, is_verified=not insecure)
        self._token = token_of(token)
        self._timeout_s = timeout_of(timeout)
        self._policy = policy_of(retry_for)
        self._linger_s = min(LINGER_S, as_duration_ms(linger) / 1000)
        self._batch_head = request_head(self.endpoint, "POST", _BATCH_PATH, CONTENT_TYPE, self._token)
        self._begin()
        self._offer(Operations(self._carrier()), awaits=False)
        in_a_forked_child(self, Client._begin_in_child)

    def _carrier(self) -> Carrier:
        async def ask(call: Call[T]) -> T:
            return self._ask(call)

        async def in_thread(act: Callable[..., T], *args: Any) -> T:
            return act(*args)

        async def send_many(drafts: Iterable[Draft]) -> list[Answer]:
            return self._send_many(drafts)

        return Carrier(
            ask, in_thread, send_many, self._send_many, lambda: self._flight, lambda: self._closing.is_set()
        )

    def _begin(self) -> None:
        """Create the state shared by threads: connections, locks and the coalescer."""
        self._pool = Pool(lambda: connect(self.endpoint, self._timeout_s))
        self._unix_transport = UnixTransport(self.endpoint, self._pool, self._timeout_s)
        self._closing = Closing()
        self._flight = FlightLink(
            self.endpoint, self._token, self._policy, lambda: self._ask(health()), self._closing
        )
        self._coalescer = Coalescer(self._send_batch, linger_s=self._linger_s)

    def _begin_in_child(self) -> None:
        was_closed = self._closing.is_set()
        for shared in (self._flight, self._unix_transport, self._pool):
            shared.leave_to_parent()
        self._begin()
        if was_closed:
            self._closing.set()

    # -- sending ----------------------------------------------------------------------------------

    def _send(self, draft: Draft) -> SendResult:
        answer = self._coalescer.send(draft)
        if not isinstance(answer, SendResult):
            # It waits for itself: those it travelled with have their answers.
            answer = self._until_taken([draft], [answer])[0]
        if isinstance(answer, SendResult):
            return answer
        try:
            raise answer
        finally:
            del answer  # which would hold itself, by the frame it is raised from

    def _send_many(self, drafts: Iterable[Draft]) -> list[Answer]:
        async def send(part: Sequence[Draft]) -> Sequence[Answer]:
            return self._until_taken(part, self._send_batch(part))

        return finished(sent_in_requests(drafts, send))

    def _until_taken(self, drafts: Sequence[Draft], first: Sequence[Answer]) -> list[Answer]:
        async def pause(wait_s: float) -> bool:
            return self._closing.wait(wait_s)

        async def send_batch(again: Sequence[Draft]) -> Sequence[Answer]:
            return self._send_batch(again)

        return finished(until_taken(drafts, first, self._policy, pause, send_batch))

    def _send_batch(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        return send_parted(self._send_whole, drafts)

    def _send_whole(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        way, timeout_s = self._unix_transport, self._timeout_s
        content = self._carry(way, self._batch_head, encoded(drafts), timeout_s, Patience(self._policy))
        return decode_answers(content, drafts)

    # -- carrying ---------------------------------------------------------------------------------

    def _ask(self, call: Call[T]) -> T:
        content_type = _JSON if call.content else ""
        head = request_head(self.endpoint, call.method, call.path, content_type, self._token, call.request_id)
        timeout_s = self._timeout_s + call.patience_s
        patience = Patience(self._policy, has_request_id=bool(call.request_id))
        said = self._carry(self._pool, head, call.content, timeout_s, patience, call.is_repeatable)
        return call.read(json.loads(said))

    def _carry(
        self,
        way: Pool | UnixTransport,
        head: bytes,
        content: bytes,
        timeout_s: float,
        patience: Patience,
        is_repeatable: bool = True,
    ) -> bytes:
        """A request there and its answer back, tried again while that can help."""
        if self._closing.is_set():
            raise RequestError("this client is closed; make another one")
        while True:
            fault: TidemillError
            try:
                answer = way.exchange(head, content, timeout_s, is_repeatable=is_repeatable)
            except ConnectionLostError as lost:
                fault = unreachable(self.endpoint, lost, is_read=head.startswith(_GET))
                can_help = (is_repeatable or not lost.was_sent) and can_come_back(lost)
            else:
                if 200 <= answer.status < 300:
                    return answer.content
                fault = error_in(answer.status, answer.content)
                can_help = is_worth_a_retry(answer.status, is_repeatable=is_repeatable)
            wait_s = patience.wait_s() if can_help else None
            if wait_s is None or self._closing.wait(wait_s):
                try:
                    raise fault
                finally:
                    del fault  # as in `_send`

    def close(self) -> None:
        """Close the connections; calls that wait for a retry fail."""
        self._closing.set()
        self._flight.close()
        self._unix_transport.close()
        self._pool.close()
