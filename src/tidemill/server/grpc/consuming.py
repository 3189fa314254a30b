"""The calls of consumers: receive, ack, change invisibility, forward to the dead letters.

Owns how long a poll may wait (`receiving.py`), how the leases of push clients are renewed (`leases.py`), and
that messages whose answer was lost are returned. The rules of delivery are the broker's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.consume.ack_tokens import decode_ack_token
from tidemill.broker.consume.retries import SendBackAnswer, pause_after
from tidemill.core.errors import (
    IllegalLeaseError,
    InvalidAckTokenError,
    RequestError,
)
from tidemill.core.limits import HOUR_MS
from tidemill.core.model import Delivery
from tidemill.server.batching import Batcher
from tidemill.server.grpc.conversion import message_of, resource_name, set_timestamp, tag_filter_of
from tidemill.server.grpc.framing import Call, Stream
from tidemill.server.grpc.leases import LEASE_MS, Leases
from tidemill.server.grpc.protocol import CLIENT_ID, Code, service
from tidemill.server.grpc.status_codes import OK, status, status_of
from tidemill.server.grpc.telemetry import BATCH_MAX, LONG_POLL_S
from tidemill.server.long_poll import LongPolls
from tidemill.server.receiving import Receiving, Wanted
from tidemill.server.security.caller import RECEIVE, own, require

_INVISIBLE_MS_MAX = 12 * HOUR_MS
# The answer must be on its way before the client's deadline; a client that does not say how long to wait has
# added its own time for a request to that, and wants it back.
_DEADLINE_MARGIN_S = 0.25
_DEADLINE_MARGIN_UNASKED_S = 1.5
_ATTEMPTS_KEPT = 4096
_NO_MESSAGE = status(Code.MESSAGE_NOT_FOUND)
_INVALID = InvalidAckTokenError(
    "the receipt is not, or no longer, valid; the message was settled or delivered again"
)


@dataclass(frozen=True, slots=True)
class _Poll:
    """One receive request."""

    wanted: Wanted
    namespace: str
    client_id: str
    attempt_id: str
    is_renewed: bool


class Consuming:
    """ReceiveMessage, AckMessage and their like. Lives on one event loop."""

    def __init__(
        self, broker: Broker, executor: ThreadPoolExecutor, leases: Leases, polls: LongPolls | None = None
    ) -> None:
        self._broker = broker
        self._executor = executor
        self._leases = leases
        self.polls = polls or LongPolls(broker.store.notifier, broker.receiver.has_news)
        self._receiving = Receiving(broker, self.polls, executor)
        self._acks: Batcher[str, bool] = Batcher(broker.ack, executor, in_flight_max=2, batch_max=1024)
        self._attempts: OrderedDict[str, list[str]] = OrderedDict()

    async def _call(self, verb: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(verb, *arguments))

    # -- receive ----------------------------------------------------------------------------------

    async def receive(self, request: Any, stream: Stream, call: Call) -> None:
        poll = _poll_of(request, call)
        self._leases.seen(poll.client_id, self._broker.clock.boot_ms())
        await self._return_lost(self._attempts.pop(poll.attempt_id, ()))
        found = await self._receiving.receive(
            poll.wanted, _patience_s(request, call), partial(_is_there, stream), stream.start
        )
        if not found:
            await stream.write([service.ReceiveMessageResponse(status=_NO_MESSAGE).SerializeToString()])
            return
        ack_tokens = [delivery.ack_token for delivery in found]
        try:
            await stream.write(self._encode(found, poll.namespace))
        except OSError:
            await self._return_lost(ack_tokens)
            raise
        if poll.is_renewed:
            self._leases.add(ack_tokens, poll.client_id, self._broker.clock.boot_ms())
        if poll.attempt_id:
            self._attempts[poll.attempt_id] = ack_tokens
            if len(self._attempts) > _ATTEMPTS_KEPT:
                self._attempts.popitem(last=False)

    async def _return(self, ack_tokens: Sequence[str], wait_ms: int = 0) -> None:
        if ack_tokens:
            self._leases.drop(ack_tokens)
            await self._call(self._broker.change_invisibility, ack_tokens, wait_ms)
            self._schedule_look(ack_tokens)

    async def _return_lost(self, ack_tokens: Sequence[str]) -> None:
        """Return messages that did not reach their client: the first time at once, then with growing delays.

        The client may be unable to take it (too large for its gRPC library): it must get the messages behind
        it, and the message keeps its attempts for another client.
        """
        later: defaultdict[int, list[str]] = defaultdict(list)
        levels_ms = self._broker.settings.level_delays_ms
        for ack_token in ack_tokens:
            delivery = decode_ack_token(ack_token)
            group = self._broker.receiver.group(delivery.group)
            is_first = delivery.attempt == 1
            wait_ms = 0 if is_first else pause_after(group, delivery.attempt - 1, levels_ms).ms
            later[wait_ms].append(ack_token)
        for wait_ms, lost in later.items():
            await self._return(lost, wait_ms)

    def _schedule_look(self, ack_tokens: Sequence[str]) -> None:
        """Leases ended or changed: the waiters there look again, or wait for another time."""
        for group, topic, queue_id in {decode_ack_token(ack_token)[:3] for ack_token in ack_tokens}:
            self.polls.wake_one((self._broker.receiver.received_as(topic, queue_id), group))

    def _encode(self, found: Sequence[Delivery], namespace: str) -> list[bytes]:
        frames = [service.ReceiveMessageResponse(status=OK)]
        frames += [service.ReceiveMessageResponse(message=message_of(d, namespace)) for d in found]
        last = service.ReceiveMessageResponse()
        set_timestamp(last.delivery_timestamp, self._broker.clock.now_ms())
        frames.append(last)
        return [frame.SerializeToString() for frame in frames]

    # -- settling ---------------------------------------------------------------------------------

    async def ack(self, request: Any, call: Call) -> Any:
        group, topic = resource_name(request.group), resource_name(request.topic)
        ack_tokens = [entry.receipt_handle for entry in request.entries]
        valid = [self._is_token_of(ack_token, group) for ack_token in ack_tokens]
        waiting = [
            self._acks.submit(ack_token)
            for ack_token, is_valid in zip(ack_tokens, valid, strict=True)
            if is_valid
        ]
        settled = iter([await waiter for waiter in waiting])
        answers = [is_valid and next(settled) for is_valid in valid]
        self._leases.drop(ack_tokens)
        self._leases.seen(own(call.header(CLIENT_ID)), self._broker.clock.boot_ms())
        if self._broker.receiver.has_news(topic, group):  # in a FIFO queue the next one may go now
            self.polls.wake_one((topic, group))
        response = service.AckMessageResponse()
        for entry, is_settled in zip(request.entries, answers, strict=True):
            response.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=OK if is_settled else status_of(_INVALID),
            )
        if len(set(answers)) > 1:
            response.status.CopyFrom(status(Code.MULTIPLE_RESULTS))
        else:
            response.status.CopyFrom(OK if all(answers) else response.entries[0].status)
        return response

    async def change_invisibility(self, request: Any, _: Call) -> Any:
        # The receipt handle goes back also with an error: clients overwrite theirs with whatever comes.
        response = service.ChangeInvisibleDurationResponse(status=OK, receipt_handle=request.receipt_handle)
        try:
            await self._change(request)
        except RequestError as error:
            response.status.CopyFrom(status_of(error))
        return response

    async def _change(self, request: Any) -> None:
        ack_token = request.receipt_handle
        if not self._is_token_of(ack_token, resource_name(request.group)):
            raise _INVALID
        invisible_ms = _duration_ms(request.invisible_duration)
        if not 0 <= invisible_ms <= _INVISIBLE_MS_MAX:
            which = "too large" if invisible_ms > 0 else "too small"
            raise IllegalLeaseError(f"the invisible time of {invisible_ms} ms is {which}; use 0 to 12 h")
        if self._leases.holds(ack_token):
            # A push consumer failed on it. Not its time counts but the group's: it may know an older table,
            # or none (Node's client), and would spin on a failing message if its pause were nothing.
            (sent,) = await self._call(self._broker.retry, [ack_token])
            is_changed = sent.answer is not SendBackAnswer.INVALID
        else:
            (is_changed,) = await self._call(self._broker.change_invisibility, [ack_token], invisible_ms)
        self._leases.drop([ack_token])
        if not is_changed:
            raise _INVALID
        self._schedule_look([ack_token])

    async def forward(self, request: Any, _: Call) -> Any:
        ack_token = request.receipt_handle
        if not self._is_token_of(ack_token, resource_name(request.group)):
            raise _INVALID
        (is_moved,) = await self._call(self._broker.dead_letter, [ack_token])
        self._leases.drop([ack_token])
        if not is_moved:
            raise _INVALID
        self.polls.wake_one((resource_name(request.topic), resource_name(request.group)))
        return service.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _is_token_of(self, ack_token: str, group: str) -> bool:
        """Whether it is an ack token of the group; raises if the caller may not settle it."""
        try:
            named, topic, queue_id, *_ = decode_ack_token(ack_token)
        except InvalidAckTokenError:
            return False
        require(RECEIVE, topic=self._broker.receiver.received_as(topic, queue_id), group=named)
        return named == group

    # -- keeping ----------------------------------------------------------------------------------

    async def renew_leases(self) -> None:
        """Renew what living push clients hold, return what the others held."""
        due = self._leases.due(self._broker.clock.boot_ms())
        if due.renew:
            await self._call(self._broker.change_invisibility, due.renew, LEASE_MS)
        await self._return(due.lost)

    async def forget_client(self, client_id: str) -> None:
        await self._return(self._leases.forget_client(client_id))


def _poll_of(request: Any, call: Call) -> _Poll:
    invisible_ms = LEASE_MS
    if not request.auto_renew and request.HasField("invisible_duration"):
        invisible_ms = _duration_ms(request.invisible_duration)
        if not 0 < invisible_ms <= _INVISIBLE_MS_MAX:
            which = "too large" if invisible_ms > 0 else "too small"
            raise IllegalLeaseError(f"the invisible time of {invisible_ms} ms is {which}; use 1 ms to 12 h")
    wanted = Wanted(
        topic=resource_name(request.message_queue.topic),
        group=resource_name(request.group),
        count=max(1, min(request.batch_size, BATCH_MAX)),
        invisible_ms=invisible_ms,
        accepts_tag=tag_filter_of(request.filter_expression),
    )
    return _Poll(
        wanted=wanted,
        namespace=request.message_queue.topic.resource_namespace,
        client_id=own(call.header(CLIENT_ID)),
        attempt_id=own(request.attempt_id) if request.attempt_id else "",
        is_renewed=request.auto_renew,
    )


async def _is_there(stream: Stream) -> bool:
    try:
        await stream.probe()
    except OSError:
        return False
    return True


def _patience_s(request: Any, call: Call) -> float:
    """How long a poll may wait: as requested, but never into the client's deadline."""
    asked_s, margin_s = float(LONG_POLL_S), _DEADLINE_MARGIN_UNASKED_S
    if request.HasField("long_polling_timeout"):
        asked_s, margin_s = _duration_ms(request.long_polling_timeout) / 1000, _DEADLINE_MARGIN_S
    left_s = call.left_s()
    return asked_s if left_s is None else min(asked_s, left_s - margin_s)


def _duration_ms(duration: Any) -> int:
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000
