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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tidemill.client import verbs
from tidemill.client.answers import (
    Backup,
    BrokerStatus,
    GroupInfo,
    Holds,
    Minute,
    Pending,
    TopicInfo,
)
from tidemill.client.arguments import (
    can_come_back,
    optional_ms,
    optional_time,
    policy_of,
    timeout_of,
    token_of,
    unreachable,
)
from tidemill.client.change_verbs import ChangeVerbs
from tidemill.client.consume_verbs import ConsumeVerbs
from tidemill.client.damage_verbs import DamageVerbs
from tidemill.client.retry_verbs import RetryVerbs
from tidemill.client.send.coalescer import LINGER_S, Coalescer
from tidemill.client.send.drafts import Body, draft_of, drafts_of_table, jitter_ms_of, with_id
from tidemill.client.send.isolate_bad_message import encoded, send_parted
from tidemill.client.send.request_limits import in_requests
from tidemill.client.tables.flight_link import FlightLink
from tidemill.client.tables.scheduled import Scheduled
from tidemill.client.tables.table_verbs import TableVerbs, scheduled_by_flight
from tidemill.client.transport.close_signal import Closing
from tidemill.client.transport.connection import ConnectionLostError, Pool, connect
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT, Endpoint, request_head
from tidemill.client.transport.forking import in_a_forked_child
from tidemill.client.transport.retrying import Patience, busy_ones, error_in, is_worth_a_retry
from tidemill.client.transport.unix_transport import UnixTransport
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


class Client(ConsumeVerbs, ChangeVerbs, TableVerbs, RetryVerbs, DamageVerbs):
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
        in_a_forked_child(self, Client._begin_in_child)

    def _begin(self) -> None:
        """Create the state shared by threads: connections, locks and the coalescer."""
        self._pool = Pool(lambda: connect(self.endpoint, self._timeout_s))
        self._unix_transport = UnixTransport(self.endpoint, self._pool, self._timeout_s)
        self._closing = Closing()
        self._flight = FlightLink(
            self.endpoint, self._token, self._policy, lambda: self._ask(verbs.health()), self._closing
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

    def send_many(self, drafts: Iterable[Draft]) -> list[SendResult | TidemillError]:
        """Send many messages in as few requests as possible; each has its own answer, in order."""
        answers: list[SendResult | TidemillError] = []
        for part in in_requests(drafts):
            answers.extend(self._until_taken(part, self._send_batch(part)))
        return answers

    def _until_taken(self, drafts: Sequence[Draft], first: Sequence[Answer]) -> list[Answer]:
        """The answers when none is a refusal for now only any more, or waiting has been in vain."""
        answers, patience = list(first), Patience(self._policy)
        while again := busy_ones(answers):
            wait_s = patience.wait_s()
            if wait_s is None or self._closing.wait(wait_s):
                break
            for index, answer in zip(again, self._send_batch([drafts[i] for i in again]), strict=True):
                answers[index] = answer
        return answers

    def schedule(self, table: Any, *, topic: str | None = None, jitter: Span | None = None) -> Scheduled:
        """Send the rows of an Arrow table, a pandas frame or an iterable of mappings; each has its answer.

        Tables go through the broker's Flight endpoint where it has one, which is much faster. `jitter` is
        that of every row; a column `jitter_ms` gives each its own.
        """
        jitter_ms = 0 if jitter is None else jitter_ms_of(jitter)
        scheduled = scheduled_by_flight(self._flight, table, topic, jitter_ms, self.send_many)
        if scheduled is None:
            return Scheduled([self.send_many(drafts_of_table(table, topic, jitter_ms))])
        return scheduled

    def _send_batch(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        return send_parted(self._send_whole, drafts)

    def _send_whole(self, drafts: Sequence[Draft]) -> Sequence[Answer]:
        way, timeout_s = self._unix_transport, self._timeout_s
        content = self._carry(way, self._batch_head, encoded(drafts), timeout_s, Patience(self._policy))
        return decode_answers(content, drafts)

    # -- looking ----------------------------------------------------------------------------------

    def pending(
        self,
        topic: str | None = None,
        *,
        key: str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        limit: int = 100,
    ) -> list[Pending]:
        """Messages that wait, earliest due first."""
        return self._ask(verbs.pending(topic, key, optional_time(start), optional_time(end), limit))

    def forecast(self, topic: str | None = None, *, horizon: Span = "1h") -> list[Minute]:
        """How many messages fall due in each minute."""
        return self._ask(verbs.forecast(topic, as_duration_ms(horizon)))

    def status(self) -> BrokerStatus:
        """The broker's state: its clock, counts, lateness and timer runner."""
        return self._ask(verbs.status())

    def find(self, topic: str, key: str) -> list[dict[str, Any]]:
        """Messages with a key, waiting or delivered, newest first."""
        return self._ask(verbs.find(topic, key))

    # -- topics, groups, levers -------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """Every topic that you may look at, with its counts."""
        return self._ask(verbs.topics())

    def create_topic(
        self,
        name: str,
        type: TopicType | str = TopicType.MIXED,  # noqa: A002 - the name people look for
        *,
        queues: int | None = None,
    ) -> TopicInfo:
        """Make a topic; the same again is no error."""
        return self._ask(verbs.create_topic(name, type, queues))

    def delete_topic(self, name: str, *, force: bool = False) -> int:
        """Delete a topic; returns how many pending messages were cancelled with it."""
        return self._ask(verbs.delete_topic(name, force))

    def pause_topic(self, name: str) -> TopicInfo:
        """Hold a topic's releases; what falls due meanwhile goes when it is resumed."""
        return self._ask(verbs.pause_topic(name))

    def resume_topic(self, name: str) -> TopicInfo:
        """Let a topic's releases go on."""
        return self._ask(verbs.resume_topic(name))

    def limit_topic(self, name: str, per_second: int) -> TopicInfo:
        """Bound a topic's releases a second; 0: no limit."""
        return self._ask(verbs.limit_topic(name, per_second))

    def hold(self, what: Held | str) -> Holds:
        """Hold the whole broker's `releases`, or `absorbing` (what its timer takes in), until resumed."""
        return self._ask(verbs.hold(what))

    def resume(self, what: Held | str) -> Holds:
        """End a hold of `releases` or `absorbing`; what fell due meanwhile goes at once."""
        return self._ask(verbs.resume(what))

    def groups(self) -> list[GroupInfo]:
        """Every consumer group that you may look at: its settings and how far behind it is."""
        return self._ask(verbs.groups())

    def set_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        is_fifo: bool | None = None,
        start: str | None = None,
        backoff: str | None = None,
    ) -> GroupInfo:
        """Make a group, or change what is given; the rest stays."""
        return self._ask(verbs.set_group(name, max_attempts, is_fifo, start, backoff))

    def reset_group(self, name: str, topic: str, to: Moment) -> None:
        """Let a group read a topic again from the messages released at a time."""
        self._ask(verbs.reset_group(name, topic, as_time_ms(to)))

    def advance(self, by: Span | None = None, *, to: Moment | None = None) -> int:
        """Move a simulated clock; returns the new time."""
        return self._ask(verbs.advance(optional_ms(by), optional_time(to)))

    def backup(self, directory: str) -> Backup:
        """Copy the live broker into a new directory on its machine."""
        return self._ask(verbs.backup(directory))

    def backup_progress(self) -> tuple[int, int]:
        """Bytes copied by the backup under way, and to copy; both 0 while there is none."""
        return self._ask(verbs.backup_progress())

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

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
