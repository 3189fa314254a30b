"""What a caller may send: every check that needs no disk, each with its own error naming limit and value.

Pure. A draft that passes here is stored as it is; one that does not leaves no trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from tidemill.broker.send.jitter import check_jitter
from tidemill.core.arguments import require_kind
from tidemill.core.config import BrokerSettings
from tidemill.core.draft_kinds import check_kinds
from tidemill.core.durations import format_duration
from tidemill.core.errors import (
    BodyTooLargeError,
    IllegalDelayError,
    IllegalGroupError,
    IllegalIdError,
    IllegalKeyError,
    IllegalMessageGroupError,
    IllegalPropertyError,
    IllegalTagError,
    IllegalTopicError,
    PropertiesTooLargeError,
    RequestError,
    WrongMessageTypeError,
)
from tidemill.core.levels import clamped_level
from tidemill.core.limits import (
    CARRIED_BYTES_MAX,
    GROUP_CHARS_MAX,
    ID_CHARS_MAX,
    MESSAGE_GROUP_CHARS_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTY_COUNT_MAX,
    TOPIC_CHARS_MAX,
)
from tidemill.core.model import NO_TIME_MS, Draft, MessageType, Once, TopicType
from tidemill.core.property_names import CARRIED_PROPERTIES, RESERVED_PROPERTIES
from tidemill.log.arrays import I64

_NAME = re.compile(r"[%A-Za-z0-9_-]+")
# Lone surrogates are half a character (a wrong encoding on the way here): they have no bytes.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_SPACED = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")
_NO_TEXT = re.compile(r"[\ud800-\udfff]")
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
GROUP_TOPIC_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)  # of topics that a group has for itself
_RESERVED_PREFIXES = ("rmq_sys_", *GROUP_TOPIC_PREFIXES)

_TAKES = {
    TopicType.NORMAL: {MessageType.NORMAL},
    TopicType.DELAY: {MessageType.DELAY},
    TopicType.FIFO: {MessageType.FIFO},
    TopicType.TRANSACTION: {MessageType.TRANSACTION},
    TopicType.MIXED: set(MessageType),
}


def check_topic_name(name: str, *, is_internal: bool = False) -> None:
    require_kind("topic", name, str, "a text")
    longest = TOPIC_CHARS_MAX if not is_internal else len(RETRY_PREFIX) + GROUP_CHARS_MAX
    if not name or len(name) > longest:
        raise IllegalTopicError(f"topic {name[:40]!r} has {len(name)} characters; use 1 to {longest}")
    if not _NAME.fullmatch(name):
        raise IllegalTopicError(f"topic {name!r} has characters other than letters, digits, '_', '-' and '%'")
    if not is_internal and name.startswith(_RESERVED_PREFIXES):
        raise IllegalTopicError(
            f"topic {name!r} begins with a reserved prefix ({', '.join(_RESERVED_PREFIXES)})"
        )


@lru_cache(1024)
def _check_topic_of_draft(name: str) -> None:
    """Names that were right are remembered; what is raised is not."""
    check_topic_name(name)


def check_group_name(name: str) -> None:
    require_kind("group", name, str, "a text")
    if not name or len(name) > GROUP_CHARS_MAX:
        raise IllegalGroupError(f"group {name[:40]!r} has {len(name)} characters; use 1 to {GROUP_CHARS_MAX}")
    if not _NAME.fullmatch(name):
        raise IllegalGroupError(f"group {name!r} has characters other than letters, digits, '_', '-' and '%'")


def check_draft(draft: Draft, settings: BrokerSettings) -> None:
    """Everything about a draft that needs neither its topic nor the time."""
    check_kinds(draft)
    _check_topic_of_draft(draft.topic)
    if len(draft.body) > settings.body_bytes_max:
        raise BodyTooLargeError(
            f"the body has {len(draft.body)} bytes, the limit is {settings.body_bytes_max}; "
            "store it elsewhere and send a reference to it"
        )
    # Most drafts have few of these; an empty one has nothing wrong with it.
    if draft.tag:
        check_tag(draft.tag)
    if draft.keys:
        check_keys(draft.keys)
    named = check_properties(draft.properties) if draft.properties else 0
    if named or draft.tag or draft.keys:
        check_named_bytes(draft.tag, draft.keys, named)
    if draft.carried:
        check_carried(draft.carried)
    if draft.id is not None:
        check_id(draft.id)
    if draft.message_group:
        check_message_group(draft.message_group)
    if draft.once is not Once.NO:
        _check_once(draft)


def _check_once(draft: Draft) -> None:
    # An id that a library made says nothing about what was sent before.
    has_own_id = draft.id is not None and not draft.has_made_id
    is_by_id = draft.once is Once.KEEP and not draft.keys and has_own_id
    if len(draft.keys) != 1 and not is_by_id:
        raise IllegalKeyError(
            f"sending once needs exactly one key, {len(draft.keys)} were given; "
            "to keep the first message, a message id works as well"
        )


def check_message_group(name: str) -> None:
    if len(name) > MESSAGE_GROUP_CHARS_MAX or _UNPRINTABLE.search(name):
        raise IllegalMessageGroupError(
            f"message group {name[:40]!r} of {len(name)} characters must be at most "
            f"{MESSAGE_GROUP_CHARS_MAX} printable ones"
        )


def check_tag(tag: str) -> None:
    if _UNPRINTABLE.search(tag) or "|" in tag or tag != tag.strip():
        raise IllegalTagError(f"tag {tag[:80]!r} has a control character, a '|', or a blank at an end")


def check_keys(keys: Sequence[str]) -> None:
    for key in keys:
        if not key:
            raise IllegalKeyError("a key is empty; remove it, or use at least one character")
        if _SPACED.search(key):
            raise IllegalKeyError(
                f"key {key[:80]!r} has a blank or a control character; keys are separated by blanks"
            )


def check_id(message_id: str) -> None:
    if not message_id or len(message_id) > ID_CHARS_MAX or _SPACED.search(message_id):
        raise IllegalIdError(
            f"message id {message_id[:40]!r} of {len(message_id)} characters must be 1 to {ID_CHARS_MAX} "
            "without blanks"
        )


def are_words(texts: Sequence[str], chars_max: int) -> bool:
    """Whether each of many ids would pass, looked at all at once."""
    lengths = set(map(len, texts))
    return min(lengths) > 0 and max(lengths) <= chars_max and not _SPACED.search("".join(texts))


def check_properties(properties: Mapping[str, str]) -> int:
    """Check what a caller gives; returns the bytes of names and values, for `check_named_bytes`."""
    if len(properties) > PROPERTY_COUNT_MAX:
        raise PropertiesTooLargeError(
            f"{len(properties)} properties were given, the limit is {PROPERTY_COUNT_MAX}"
        )
    if not RESERVED_PROPERTIES.isdisjoint(properties):
        names = ", ".join(sorted(properties.keys() & RESERVED_PROPERTIES))
        raise IllegalPropertyError(
            f"these property names are reserved: {names}; use others, and remove them when you forward a "
            "received message"
        )
    total = 0
    for name, value in properties.items():
        if not name or _UNPRINTABLE.search(name):
            raise IllegalPropertyError(f"property name {name[:80]!r} is empty or has a control character")
        if _NO_TEXT.search(value):
            raise IllegalPropertyError(f"property {name!r} has a value that is no text: {value[:40]!r}")
        total += len(name.encode()) + len(value.encode())
    return total


def check_named_bytes(tag: str, keys: Sequence[str], property_bytes: int) -> None:
    """What a message is called, and its properties, share one limit, as in RocketMQ."""
    total = property_bytes + len(tag.encode()) + sum(len(key.encode()) for key in keys)
    if total > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLargeError(
            f"tag, keys and properties have {total} bytes together, the limit is {PROPERTIES_BYTES_MAX}; "
            "move large values into the body"
        )


def check_carried(carried: Mapping[str, str]) -> None:
    """Fields of RocketMQ's message that are kept as properties."""
    if not carried.keys() <= set(CARRIED_PROPERTIES) or any(map(_NO_TEXT.search, carried.values())):
        raise IllegalPropertyError(f"`carried` takes texts, named {', '.join(CARRIED_PROPERTIES)}")
    total = sum(len(name) + len(value.encode()) for name, value in carried.items())
    if total > CARRIED_BYTES_MAX:
        raise PropertiesTooLargeError(
            f"the host and the trace context have {total} bytes, the limit is {CARRIED_BYTES_MAX}"
        )


def due_time_ms(draft: Draft, settings: BrokerSettings, now_ms: int) -> tuple[int | None, int, str]:
    """When a draft falls due (None: it is not timed) before its jitter, its level, and a note."""
    if (draft.deliver_at_ms is not None) + (draft.delay_ms is not None) + (draft.level != 0) > 1:
        raise RequestError("give only one of a delivery time, a delay and a level")
    if draft.level:
        if draft.jitter_ms:
            check_jitter(draft.jitter_ms, None, draft.level, draft.message_group, settings, now_ms)
        return level_due_ms(draft.level, settings, now_ms)
    if draft.deliver_at_ms is None and draft.delay_ms is None:
        if draft.jitter_ms:
            check_jitter(draft.jitter_ms, None, 0, draft.message_group, settings, now_ms)
        return None, 0, ""
    if draft.delay_ms is not None:
        check_not_negative(draft.delay_ms)
    due_ms = draft.deliver_at_ms if draft.deliver_at_ms is not None else now_ms + (draft.delay_ms or 0)
    check_delay(due_ms, settings, now_ms)
    due_ms = max(due_ms, 0)
    if draft.jitter_ms:
        check_jitter(draft.jitter_ms, due_ms, 0, draft.message_group, settings, now_ms)
    return due_ms, 0, ""


def level_due_ms(level: int, settings: BrokerSettings, now_ms: int) -> tuple[int, int, str]:
    """When a message of a level (not 0) falls due, the level it is on, and a note for the result."""
    delays_ms = settings.level_delays_ms
    clamped, note = clamped_level(level, delays_ms)
    return now_ms + delays_ms[clamped - 1], clamped, note


def level_columns(asked: I64, settings: BrokerSettings, now_ms: int) -> tuple[I64, I64, list[str] | None]:
    """The same for a column of levels: 0 where there is none, and None where no note is needed."""
    levels, which = np.unique(asked, return_inverse=True)
    none = (NO_TIME_MS, 0, "")
    each = [level_due_ms(level, settings, now_ms) if level else none for level in levels.tolist()]
    due, used = (np.array(column, np.int64)[which] for column in ([e[0] for e in each], [e[1] for e in each]))
    if not any(note for _, _, note in each):
        return due, used, None
    return due, used, [each[at][2] for at in which.tolist()]


def check_not_negative(delay_ms: int, *, where: str = "") -> None:
    """A delay counts forward; a delivery time that has passed is due at once."""
    if delay_ms < 0:
        raise IllegalDelayError(f"{where}delay_ms {delay_ms} is negative; use 0 or more")


def check_delay(due_ms: int, settings: BrokerSettings, now_ms: int, *, where: str = "") -> None:
    if due_ms - now_ms > settings.max_delay_ms:
        limit = format_duration(settings.max_delay_ms)
        raise IllegalDelayError(
            f"{where}a delay of {format_duration(due_ms - now_ms)} ({due_ms - now_ms} ms) is beyond the "
            f"limit of {limit} ({settings.max_delay_ms} ms); raise --max-delay"
        )


def check_type(kind: MessageType, topic_name: str, topic_type: TopicType) -> None:
    if kind not in _TAKES[topic_type]:
        raise WrongMessageTypeError(
            f"topic {topic_name!r} takes {topic_type.value} messages, this one is {kind.name.lower()}; "
            "send it to another topic or make one of type mixed"
        )
