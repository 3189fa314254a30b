"""Checks of arguments before a broker is asked: one in this process refuses the same as a served one.

Pure. What depends on the broker's state or settings is the broker's to check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.core.arguments import require_int, require_kind, require_whole
from tidemill.core.errors import RequestError
from tidemill.core.limits import (
    HORIZON_MS_MAX,
    LOOK_COUNT_MAX,
    MAX_DELAY_MS,
    QUEUES_PER_TOPIC_MAX,
    RECEIVE_COUNT_MAX,
)
from tidemill.core.model import TopicType

_LEVEL_MAX = 1 << 31


def require_text(name: str, value: Any) -> None:
    """A text that is not empty: a topic, a group, a key, a directory."""
    require_kind(name, value, str, "a text")
    if not value:
        what = "the name" if name in ("topic", "group") else name
        raise RequestError(f"{what} is empty; name the {name}")


def require_text_or_none(name: str, value: Any) -> None:
    if value is not None:
        require_text(name, value)


def require_flag(name: str, value: Any) -> None:
    require_kind(name, value, bool, "True or False")


def require_limit(limit: Any) -> None:
    require_whole("limit", limit, 1, LOOK_COUNT_MAX)


def texts_of(name: str, values: Sequence[str]) -> list[str]:
    """Several texts; a lone one would be taken for its letters."""
    if isinstance(values, str):
        raise RequestError(f"{name} must be a list of texts; write {name}=[{values!r}]")
    try:
        texts = list(values)
    except TypeError:
        raise RequestError(f"{name} must be a list of texts, {type(values).__name__} was given") from None
    for text in texts:
        require_kind(f"each of {name}", text, str, "a text")
    return texts


def tags_of(tags: Sequence[str] | None) -> list[str] | None:
    """The tags asked for; none at all would skip every message for good."""
    if tags is None:
        return None
    texts = texts_of("tags", tags)
    if not texts:
        raise RequestError("tags is empty, which no message matches; leave it out to receive all of them")
    return texts


def require_receive(topic: Any, group: Any, count: Any, lease_ms: int, one_per_message_group: Any) -> None:
    require_text("topic", topic)
    require_text("group", group)
    require_whole("count", count, 1, RECEIVE_COUNT_MAX)
    require_whole("lease_ms", lease_ms, 1, MAX_DELAY_MS)
    require_flag("one_per_message_group", one_per_message_group)


def require_extend(lease_ms: int) -> None:
    require_whole("lease_ms", lease_ms, 0, MAX_DELAY_MS)


def require_retry_level(level: Any) -> None:
    if level is not None:
        require_whole("level", level, 0, _LEVEL_MAX)


def require_horizon(horizon_ms: int) -> None:
    require_whole("horizon_ms", horizon_ms, 1, HORIZON_MS_MAX)


def topic_type_of(given: Any) -> TopicType:
    try:
        return TopicType(given)
    except ValueError:
        known = ", ".join(map(str, TopicType))
        raise RequestError(f"the type of a topic must be one of {known}; {given!r} was given") from None


def require_queues(queues: Any) -> None:
    if queues is not None:
        require_whole("queues", queues, 1, QUEUES_PER_TOPIC_MAX)


def require_group_settings(max_attempts: Any, is_fifo: Any, start: Any, backoff: Any) -> None:
    if max_attempts is not None:
        require_int("max_attempts", max_attempts)
    if is_fifo is not None:
        require_flag("is_fifo", is_fifo)
    if start not in (None, "first", "last"):
        raise RequestError(f"start {start!r} is unknown; use first or last")
    if backoff is not None:
        require_kind("backoff", backoff, str, "a text, such as '10s 1m 5m'")
