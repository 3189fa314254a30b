"""Converts between RocketMQ's messages and Tidemill's: drafts from sends, messages from deliveries.

Owns the mapping of fields and nothing else. Fields that only RocketMQ's message has (host, encoding, trace)
travel as properties with reserved names and are restored on delivery. User properties that steer a send are
consumed (`steering.py`).

User properties that a timed message carries when it is delivered: how it travelled.
    __stored_at, __due_at, __released_at   Unix milliseconds
    __runner                               the runner that handed it to the releaser
    __rolls                                how often it was placed again in the wheel; absent where unknown
A producer may set none of these, nor the others of `core/property_names.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.broker.send.admission import GROUP_TOPIC_PREFIXES
from tidemill.core.errors import EmptyBodyError, IllegalFilterError, MalformedRequestError
from tidemill.core.model import NO_TIME_MS, Delivery, Draft, MessageType, StoredMessage, TopicType
from tidemill.core.property_names import (
    CARRIED_PROPERTIES,
    DUE_AT,
    LETTER_ID,
    LETTER_TOPIC,
    MESSAGE_GROUP,
    ORIGIN_TOPIC,
    RELEASED_AT,
    ROLLS,
    RUNNER,
    STORED_AT,
    TRANSACTION_ID,
)
from tidemill.server.grpc.protocol import definition
from tidemill.server.grpc.steering import Steering, take_steering

_PB: Any = definition.MessageType
_TYPE_OUT: Mapping[MessageType, int] = {
    MessageType.NORMAL: _PB.NORMAL,
    MessageType.DELAY: _PB.DELAY,
    MessageType.FIFO: _PB.FIFO,
    MessageType.TRANSACTION: _PB.TRANSACTION,
}
# What a client may take its message for and send it: one that is timed by a property, or that is a delete
# marker, is normal to it. What the topic takes is decided by `broker/send/admission.py`.
ACCEPTED_TYPES: Mapping[TopicType, list[int]] = {
    TopicType.NORMAL: [_PB.NORMAL],
    TopicType.DELAY: [_PB.DELAY, _PB.NORMAL],
    TopicType.FIFO: [_PB.FIFO],
    TopicType.TRANSACTION: [_PB.TRANSACTION],
    TopicType.MIXED: [_PB.NORMAL, _PB.FIFO, _PB.DELAY, _PB.TRANSACTION],
}
# Looked up once: reading an enum's value by name costs as much as decoding a request.
_TRANSACTION: int = _PB.TRANSACTION
_IDENTITY: int = definition.Encoding.IDENTITY
_GZIP_ENCODING: int = definition.Encoding.GZIP
_MD5: int = definition.DigestType.MD5
_UNSUPPORTED = {_PB.LITE: "lite", _PB.PRIORITY: "priority"}

_HOST, _GZIP, _TRACE = CARRIED_PROPERTIES
_ORIGINS = (ORIGIN_TOPIC, LETTER_TOPIC)  # properties in which the broker keeps the name of a topic


def resource_name(resource: Any) -> str:
    """A topic's or group's name with its namespace, which stands before the group in `%DLQ%group`."""
    namespace: str = resource.resource_namespace
    name: str = resource.name
    if not namespace:
        return name
    prefix, rest = _parted(name)
    return f"{prefix}{namespace}%{rest}"


def fill_namespace(request: Any, namespace: str) -> None:
    """Put a client's namespace into every topic and group of its request that names none.

    One official client sets it in a header with every call, but within the request only where it sends.
    """
    for field, value in request.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if hasattr(value, "add") else [value]:
            if field.message_type is definition.Resource.DESCRIPTOR:
                part.resource_namespace = part.resource_namespace or namespace
            else:
                fill_namespace(part, namespace)


def _known_as(name: str, namespace: str) -> str | None:
    """What a client with a namespace calls a topic; None if the topic is not of that namespace."""
    prefix, rest = _parted(name)
    if not namespace or not rest.startswith(f"{namespace}%"):
        return None
    return prefix + rest.removeprefix(f"{namespace}%")


def _parted(name: str) -> tuple[str, str]:
    prefix = next(filter(name.startswith, GROUP_TOPIC_PREFIXES), "")
    return prefix, name.removeprefix(prefix)


def milliseconds(timestamp: Any) -> int:
    """Unix milliseconds of a timestamp, rounded up: a message must not be early."""
    return int(timestamp.seconds) * 1000 - (-int(timestamp.nanos) // 1_000_000)


def set_timestamp(timestamp: Any, at_ms: int) -> None:
    timestamp.seconds, rest_ms = divmod(at_ms, 1000)
    timestamp.nanos = rest_ms * 1_000_000


# -- in -------------------------------------------------------------------------------------------


def is_transaction(message: Any) -> bool:
    return bool(message.system_properties.message_type == _TRANSACTION)


def draft_of(message: Any) -> Draft:
    """What a client sends, as the broker takes it."""
    system = message.system_properties
    if system.message_type in _UNSUPPORTED:
        raise MalformedRequestError(f"{_UNSUPPORTED[system.message_type]} messages are not supported")
    body = message.body
    if not body:
        raise EmptyBodyError("the body is empty; send at least one byte")
    properties = dict(message.user_properties)
    at_ms = milliseconds(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None
    steering = take_steering(properties, at_ms) if properties else Steering(at_ms)
    carried: dict[str, str] = {}
    if system.born_host:
        carried[_HOST] = system.born_host
    if system.body_encoding == _GZIP_ENCODING:
        carried[_GZIP] = "1"
    if system.trace_context:
        carried[_TRACE] = system.trace_context
    return Draft(
        topic=resource_name(message.topic),
        body=body,
        deliver_at_ms=steering.deliver_at_ms,
        delay_ms=steering.delay_ms,
        level=steering.level,
        id=system.message_id,
        keys=tuple(system.keys),
        tag=system.tag,
        message_group=system.message_group,
        properties=properties,
        born_at_ms=milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else None,
        once=steering.once,
        jitter_ms=steering.jitter_ms,
        has_made_id=True,
        carried=carried,
    )


def tag_filter_of(expression: Any) -> Callable[[str], bool] | None:
    """Which tags a consumer wants; None for all."""
    if expression.type == definition.FilterType.SQL:
        raise IllegalFilterError("SQL filters are not supported; filter by tag, for example `A || B`")
    text = expression.expression.strip()
    if not text or text == "*":
        return None
    tags = {tag.strip() for tag in text.split("||")} - {""}  # empty parts mean nothing, as in RocketMQ
    if not tags:
        raise IllegalFilterError(
            f"filter {text[:80]!r} names no tag; write `A || B`, or `*` for all messages"
        )
    return tags.__contains__


# -- out ------------------------------------------------------------------------------------------


def message_of(delivery: Delivery, namespace: str = "") -> Any:
    """A delivery as clients expect it; they refuse or lose a message that lacks some of these fields.

    A client with a namespace is shown topics by the names that it knows.
    """
    stored = delivery.message
    message = _stored(stored, delivery.topic, namespace)
    system = message.system_properties
    system.queue_id = delivery.queue_id
    system.queue_offset = delivery.offset
    system.receipt_handle = delivery.ack_token
    system.delivery_attempt = delivery.attempt
    if stored.deliver_at_ms != NO_TIME_MS:
        set_timestamp(system.delivery_timestamp, stored.deliver_at_ms)
        message.user_properties.update(
            {
                STORED_AT: str(stored.stored_at_ms),
                DUE_AT: str(stored.deliver_at_ms),
                RELEASED_AT: str(delivery.released_at_ms),
                RUNNER: delivery.via.name.lower(),
            }
        )
        if delivery.rolls is not None:
            message.user_properties[ROLLS] = str(delivery.rolls)
    return message


def half_of(stored: StoredMessage, topic: str, namespace: str = "") -> Any:
    """A transaction's first half, for the check sent to a producer."""
    return _stored(stored, topic, namespace)


def _stored(stored: StoredMessage, topic: str, namespace: str) -> Any:
    message = definition.Message(body=stored.body)
    known_as = _known_as(topic, namespace)
    if known_as is not None:
        message.topic.resource_namespace = namespace
    message.topic.name = topic if known_as is None else known_as
    system = message.system_properties
    system.message_id = stored.id
    system.message_type = _TYPE_OUT[stored.type]
    system.body_encoding = _IDENTITY
    system.body_digest.type = _MD5
    system.body_digest.checksum = hashlib.md5(stored.body, usedforsecurity=False).hexdigest().upper()
    set_timestamp(system.born_timestamp, stored.born_at_ms)
    set_timestamp(system.store_timestamp, stored.stored_at_ms)
    if stored.tag:
        system.tag = stored.tag
    if stored.keys:
        system.keys.extend(stored.keys)
    properties = message.user_properties
    if stored.properties:
        properties.update(stored.properties)
        for origin in _ORIGINS:
            if origin in properties:
                properties[origin] = _known_as(properties[origin], namespace) or properties[origin]
        _show_hidden(system, properties)
    if stored.message_group:
        system.message_group = stored.message_group
        properties[MESSAGE_GROUP] = stored.message_group
    if stored.type is MessageType.TRANSACTION:
        properties[TRANSACTION_ID] = stored.id
    return message


def _show_hidden(system: Any, properties: Any) -> None:
    """Turn properties with reserved names back into the fields they were."""
    if _HOST in properties:
        system.born_host = properties.pop(_HOST)
    if _GZIP in properties:
        del properties[_GZIP]
        system.body_encoding = _GZIP_ENCODING
    if _TRACE in properties:
        system.trace_context = properties.pop(_TRACE)
    if LETTER_TOPIC in properties:
        system.dead_letter_queue.topic = properties[LETTER_TOPIC]
        system.dead_letter_queue.message_id = properties[LETTER_ID]
