"""The calls of producers: send, recall, end a transaction.

Owns how requests become batches for the broker and its answers become replies. Concurrent sends share one
frame and one sync (`batching.py`); the rules are the broker's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.send.answers import Answer
from tidemill.core.byte_budget import ByteBudget
from tidemill.core.errors import (
    AlreadyReleasedError,
    BusyError,
    MalformedRequestError,
    RequestError,
    TooManyRequestsError,
    UnknownMessageError,
    UnknownTransactionError,
)
from tidemill.core.limits import MIB
from tidemill.core.model import CancelAnswer, Draft, Handle, Once, SendResult
from tidemill.server.batching import Batcher
from tidemill.server.grpc.conversion import draft_of, is_transaction, resource_name
from tidemill.server.grpc.framing import Call
from tidemill.server.grpc.protocol import CLIENT_ID, Code, definition, service
from tidemill.server.grpc.status_codes import OK, status, status_of
from tidemill.server.grpc.steering import DELETE_KEY
from tidemill.server.security.caller import CANCEL, SEND, caller, own, require, require_send

# One at a time: what comes meanwhile makes the next batch larger, which saves more than overlapping gains.
_BATCHES_IN_FLIGHT = 1
_BATCH_COUNT_MAX = 512
_PAUSE_S = 0.002
_BATCH_BYTES_MAX = 8 * MIB
_WAITING_MAX = 20_000
_OWNERS_MAX = 100_000
_ANY_SEQ = -1  # of no message: it is looked for by its id

_Reply = SendResult | RequestError | BusyError


class Producing:
    """SendMessage, RecallMessage, EndTransaction. Lives on one event loop."""

    def __init__(self, broker: Broker, executor: ThreadPoolExecutor, *, creates_topics: bool) -> None:
        self._broker = broker
        self._executor = executor
        self._creates_topics = creates_topics
        self._in_flight = ByteBudget(broker.settings.in_flight_bytes_max)
        # Which client began which transaction: the one to check with. Lost with a restart; then the topic
        # decides.
        self.owners: OrderedDict[tuple[str, str], str] = OrderedDict()  # (topic, id) -> client
        self._senders = ThreadPoolExecutor(_BATCHES_IN_FLIGHT, thread_name_prefix="tidemill-send")
        self._batcher: Batcher[Draft, Answer] = Batcher(
            partial(broker.send_each, creates_topics=creates_topics),
            self._senders,
            in_flight_max=_BATCHES_IN_FLIGHT,
            batch_max=_BATCH_COUNT_MAX,
            size_max=_BATCH_BYTES_MAX,
            size_of=lambda draft: len(draft.body),
            pause_s=_PAUSE_S,
        )

    def close(self) -> None:
        self._senders.shutdown()

    # -- send -------------------------------------------------------------------------------------

    async def send(self, request: Any, call: Call) -> Any:
        messages = request.messages
        if caller() is not None:
            for message in messages:
                require(SEND, topic=resource_name(message.topic))
        size = call.request_bytes
        self._take(size)
        try:
            if len(messages) == 1 and not is_transaction(messages[0]):
                replies: Sequence[_Reply] = (await self._send_one(messages[0]),)
            else:
                replies = await self._send_several(messages, own(call.header(CLIENT_ID)))
        finally:
            self._in_flight.give_back(size)
        return _reply_to_send(messages, replies)

    def _take(self, size: int) -> None:
        if self._batcher.waiting > _WAITING_MAX or not self._in_flight.take(size):
            raise TooManyRequestsError(
                f"send limit reached: {self._batcher.waiting} sends waiting, {self._in_flight.held} bytes in "
                "flight; retry later"
            )

    def _submit(self, draft: Draft) -> Awaitable[_Reply]:
        if draft.once is Once.REPLACE:  # moves a message, which takes a frame of its own
            require_send(draft.topic, replaces=True)
            return self._replace(draft)
        return self._batcher.submit(draft)

    def _send_one(self, message: Any) -> Awaitable[_Reply]:
        if DELETE_KEY in message.user_properties:
            return self._delete(message)
        return self._submit(draft_of(message))

    async def _delete(self, marker: Any) -> _Reply:
        """A message that only names another, by topic and id, to be cancelled: RocketMQ's delete marker."""
        topic = resource_name(marker.topic)
        require(CANCEL, topic=topic)
        named = marker.user_properties[DELETE_KEY].removeprefix(f"{topic}+")
        await self._cancel(Handle(self._broker.id, topic, named, _ANY_SEQ))
        return SendResult(marker.system_properties.message_id, topic, None, None)

    async def _replace(self, draft: Draft) -> _Reply:
        send_each = partial(self._broker.send_each, creates_topics=self._creates_topics)
        answers: list[_Reply] = await self._call(send_each, [draft])
        return answers[0]

    async def _send_several(self, messages: Sequence[Any], client_id: str) -> Sequence[_Reply]:
        if not messages or len({resource_name(message.topic) for message in messages}) > 1:
            raise MalformedRequestError("a send has at least one message, and all of one topic")
        kinds = {is_transaction(message) for message in messages}
        if len(kinds) > 1:
            raise MalformedRequestError("a send has either messages of transactions or others, not both")
        if kinds == {True}:
            drafts = [draft_of(message) for message in messages]
            begin = partial(self._broker.transactions.begin, creates_topics=self._creates_topics)
            receipts: list[SendResult] = await self._call(begin, drafts)
            self.owners.update(((receipt.topic, receipt.id), client_id) for receipt in receipts)
            while len(self.owners) > _OWNERS_MAX:
                self.owners.popitem(last=False)
            return receipts
        return await asyncio.gather(*map(self._send_draft_of, messages))

    async def _send_draft_of(self, message: Any) -> _Reply:
        try:
            return await self._send_one(message)
        except (RequestError, BusyError) as error:
            return error

    async def _call(self, verb: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(verb, *arguments))

    # -- recall -----------------------------------------------------------------------------------

    async def recall(self, request: Any, _: Call) -> Any:
        require(CANCEL, topic=resource_name(request.topic))
        handle = Handle.parse(request.recall_handle)
        if handle.topic != resource_name(request.topic):
            raise UnknownMessageError(
                f"the handle is of topic {handle.topic!r}, not of {request.topic.name!r}"
            )
        await self._cancel(handle)
        return service.RecallMessageResponse(status=OK, message_id=handle.id)

    async def _cancel(self, handle: Handle) -> None:
        """Return if the message is cancelled, now or before."""
        (answer,) = await self._call(self._broker.cancel, [handle])
        if answer is CancelAnswer.RELEASED:
            raise AlreadyReleasedError(
                f"message {handle.id} is already released; it cannot be recalled any more"
            )
        if answer is CancelAnswer.UNKNOWN:
            raise UnknownMessageError(f"message {handle.id} is not known here")

    # -- transactions -----------------------------------------------------------------------------

    async def end_transaction(self, request: Any, _: Call) -> Any:
        topic, message_id = resource_name(request.topic), request.transaction_id
        require(SEND, topic=topic)
        if not message_id:
            raise UnknownTransactionError("the transaction id is empty; pass the one that the send returned")
        transactions = self._broker.transactions
        if request.resolution == definition.TransactionResolution.COMMIT:
            await self._call(transactions.commit, topic, message_id)
        elif request.resolution == definition.TransactionResolution.ROLLBACK:
            await self._call(transactions.roll_back, topic, message_id)
        else:  # not decided yet: the producer is checked again later
            return service.EndTransactionResponse(status=OK)
        self.owners.pop((topic, message_id), None)
        return service.EndTransactionResponse(status=OK)


def _reply_to_send(messages: Sequence[Any], replies: Sequence[_Reply]) -> Any:
    if len(replies) == 1 and isinstance(replies[0], SendResult):
        return _reply_to_one(replies[0])
    entries = [_entry(message, reply) for message, reply in zip(messages, replies, strict=True)]
    codes = {entry.status.code for entry in entries}
    overall = entries[0].status if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)
    return service.SendMessageResponse(status=overall, entries=entries)


def _entry(message: Any, reply: _Reply) -> Any:
    if not isinstance(reply, SendResult):
        message_id = message.system_properties.message_id
        return service.SendResultEntry(status=status_of(reply), message_id=message_id)
    handle = "" if reply.handle is None else str(reply.handle)
    # Clients of every language read the transaction id, also where there is no transaction.
    return service.SendResultEntry(
        status=OK,
        message_id=reply.id,
        transaction_id=reply.id,
        offset=reply.offset or 0,
        recall_handle=handle,
    )


# -- the reply to a single send that was stored ---------------------------------------------------

# Nearly every reply is this one, so it is put together from its parts: the serialized form of a message is
# the serialized forms of its fields one after the other.
_STATUS_FIELD: bytes = service.SendMessageResponse(status=OK).SerializeToString()
_ENTRY_STATUS_FIELD: bytes = service.SendResultEntry(status=OK).SerializeToString()
_MESSAGE_ID, _TRANSACTION_ID, _OFFSET, _RECALL_HANDLE = 2, 3, 4, 5
_ENTRIES = 2


def _reply_to_one(receipt: SendResult) -> bytes:
    message_id = receipt.id.encode()
    ids = _bytes_field(_MESSAGE_ID, message_id) + _bytes_field(_TRANSACTION_ID, message_id)
    if receipt.handle is not None:
        rest = _bytes_field(_RECALL_HANDLE, str(receipt.handle).encode())
    else:
        rest = _number_field(_OFFSET, receipt.offset) if receipt.offset else b""
    return _STATUS_FIELD + _bytes_field(_ENTRIES, _ENTRY_STATUS_FIELD + ids + rest)


def _number_field(number: int, value: int) -> bytes:
    """A protobuf field with a number that is not negative: seven bits a byte, lowest first."""
    content = bytearray((number << 3,))
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def _bytes_field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field; its length, seven bits a byte, lowest first."""
    size = len(content)
    if size < 0x80:
        return bytes((number << 3 | 2, size)) + content
    assert size < 0x4000
    return bytes((number << 3 | 2, size & 0x7F | 0x80, size >> 7)) + content
