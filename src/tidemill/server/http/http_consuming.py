"""The admin API's operations for consumers: receive, ack, extend.

Owns what they do, once, for two routes. The framework's routes validate, describe themselves in OpenAPI and
report whatever is wrong. The plain ASGI endpoint in front of them exists because consumers call so often that
the framework would cost more than the broker: it serves the two most frequent requests when they are valid as
they stand, and passes everything else on, with the bytes it has read.

A consumer that waits holds no thread.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from tidemill.broker.broker import Broker
from tidemill.broker.consume.ack_tokens import decode_ack_token
from tidemill.broker.consume.receiver import TagFilter
from tidemill.core.errors import TidemillError
from tidemill.core.limits import MIB
from tidemill.core.model import Delivery
from tidemill.core.property_names import split_properties
from tidemill.server.asgi import ClientGone, Event, Receive, Scope, Send, answer, header, is_gone
from tidemill.server.http.http_errors import error_response
from tidemill.server.http.http_messages import body_out
from tidemill.server.http.http_models import (
    AckTokensIn,
    ExtendIn,
    ReceiveIn,
    ReceiveOut,
    SettledOut,
    time_out,
)
from tidemill.server.long_poll import LongPolls
from tidemill.server.receiving import Receiving, Wanted
from tidemill.server.security.caller import RECEIVE, caller, require

_RECEIVE_PATH, _ACK_PATH = "/v1/receive", "/v1/ack"
_JSON = b"application/json"
_PLAIN_BYTES_MAX = MIB
_dumps = json.JSONEncoder(separators=(",", ":")).encode

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Consumers:
    """The consumers' requests over HTTP; answers are JSON. Use on the event loop only."""

    def __init__(self, broker: Broker, polls: LongPolls, executor: ThreadPoolExecutor) -> None:
        self._broker = broker
        self._executor = executor
        self._receiving = Receiving(broker, polls, executor)

    async def _call(self, verb: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(verb, *arguments, **named))

    async def receive(self, request: ReceiveIn, client: Receive) -> bytes:
        """A `ReceiveOut` with what is there, after waiting for the first message if requested."""
        require(RECEIVE, topic=request.topic, group=request.group)
        wanted = Wanted(
            request.topic,
            request.group,
            request.count,
            request.lease_ms,
            _tag_filter(request.tags),
            request.one_per_message_group,
        )

        async def is_there() -> bool:
            return not await is_gone(client)

        try:
            return _deliveries_out(await self._receiving.receive(wanted, request.wait_ms / 1000, is_there))
        except ClientGone:
            return _deliveries_out([])

    async def ack(self, request: AckTokensIn) -> bytes:
        """A `SettledOut`."""
        require_ack_tokens(self._broker, request.ack_tokens)
        return _dumps({"settled": await self._call(self._broker.ack, request.ack_tokens)}).encode()

    async def extend(self, ack_tokens: list[str], lease_ms: int, *, is_untried: bool = False) -> bytes:
        """A `SettledOut`."""
        require_ack_tokens(self._broker, ack_tokens)
        extend = self._broker.change_invisibility
        return _dumps(
            {"settled": await self._call(extend, ack_tokens, lease_ms, is_untried=is_untried)}
        ).encode()


def consumer_routes(consumers: Consumers) -> APIRouter:
    """Routes for consumers."""
    routes = APIRouter(prefix="/v1", tags=["messages"])

    @routes.post("/receive", response_model=ReceiveOut)
    async def receive(request: ReceiveIn, http: Request) -> Response:
        """Take messages for a group; waits up to `wait_ms` for the first one."""
        return _json_response(await consumers.receive(request, http.receive))

    @routes.post("/ack", response_model=SettledOut)
    async def ack(request: AckTokensIn) -> Response:
        """Settle deliveries."""
        return _json_response(await consumers.ack(request))

    @routes.post("/extend", response_model=SettledOut)
    async def extend(request: ExtendIn) -> Response:
        """Let the leases of deliveries end in `lease_ms`; the messages are delivered again then."""
        return _json_response(await consumers.extend(request.ack_tokens, request.lease_ms))

    @routes.post("/requeue", response_model=SettledOut)
    async def requeue(request: AckTokensIn) -> Response:
        """Return deliveries untried: they are delivered again at once, and count as no attempts."""
        return _json_response(await consumers.extend(request.ack_tokens, 0, is_untried=True))

    return routes


class ConsumerEndpoint:
    """Receives and acks, before any of the framework's machinery."""

    def __init__(self, consumers: Consumers, framework: Application) -> None:
        self._consumers = consumers
        self._framework = framework

    def has(self, scope: Scope) -> bool:
        """Whether the request is one of the two."""
        return scope["path"] in (_RECEIVE_PATH, _ACK_PATH) and scope["method"] == "POST"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = await _read(receive)
        request = _plain_request(scope, events)
        if request is None:
            await self._framework(scope, _beginning_with(events, receive), send)
            return
        try:
            if isinstance(request, ReceiveIn):
                content = await self._consumers.receive(request, receive)
            else:
                content = await self._consumers.ack(request)
        except TidemillError as error:
            await error_response(error)(scope, receive, send)
            return
        await answer(send, 200, content)


async def _read(receive: Receive) -> list[Event]:
    """The request's body as it came; of one that is unusually large only the beginning."""
    events = [await receive()]
    size = len(events[0].get("body", b""))
    while events[-1].get("more_body", False) and size < _PLAIN_BYTES_MAX:
        events.append(await receive())
        size += len(events[-1].get("body", b""))
    return events


def _plain_request(scope: Scope, events: Sequence[Event]) -> ReceiveIn | AckTokensIn | None:
    """The request, if it is whole, JSON and right."""
    if events[-1]["type"] != "http.request" or events[-1].get("more_body", False):
        return None
    if not header(scope, b"content-type").startswith(_JSON):
        return None
    model = ReceiveIn if scope["path"] == _RECEIVE_PATH else AckTokensIn
    try:
        return model.model_validate(json.loads(b"".join(event.get("body", b"") for event in events)))
    except (ValidationError, ValueError, RecursionError):
        return None


def _beginning_with(events: Sequence[Event], receive: Receive) -> Receive:
    """A `receive` that first brings what was read already."""
    read = deque(events)

    async def replayed() -> Event:
        return read.popleft() if read else await receive()

    return replayed


def _json_response(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _deliveries_out(deliveries: Sequence[Delivery]) -> bytes:
    """A `ReceiveOut`, written without the models: here they would cost more than the broker."""
    return _dumps({"deliveries": list(map(_delivery_out, deliveries))}).encode()


def _delivery_out(delivery: Delivery) -> dict[str, object]:
    """The fields of a `DeliveryOut`."""
    message = delivery.message
    text, encoded = body_out(message.body)
    own, added = split_properties(message.properties)
    fields: dict[str, object] = {
        "message_id": message.id,
        "topic": delivery.topic,
        "body": text,
        "body_base64": encoded,
        "ack_token": delivery.ack_token,
        "attempt": delivery.attempt,
        "keys": message.keys,
        "tag": message.tag,
        "message_group": message.message_group,
        "properties": own,
        "queue": delivery.queue_id,
        "offset": delivery.offset,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": message.stored_at_ms,
        "deliver_at_ms": time_out(message.deliver_at_ms),
        "released_at_ms": delivery.released_at_ms,
        "lease_until_ms": delivery.invisible_until_ms,
        "via": delivery.via.name.lower(),
        "rolls": delivery.rolls,
    }
    if added:
        fields["broker_properties"] = added
    return fields


def require_ack_tokens(broker: Broker, ack_tokens: list[str]) -> None:
    """`ForbiddenError` unless the caller may settle all of these."""
    if caller() is not None:
        for group, topic, queue_id in {decode_ack_token(ack_token)[:3] for ack_token in ack_tokens}:
            require(RECEIVE, topic=broker.receiver.received_as(topic, queue_id), group=group)


def _tag_filter(tags: list[str] | None) -> TagFilter | None:
    if tags is None:
        return None
    wanted = frozenset(tags)
    return lambda tag: tag in wanted
