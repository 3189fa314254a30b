"""User properties that steer a send over gRPC: the broker consumes them, and they are not delivered.

    __delay_ms          a delay in milliseconds, on the broker's own clock
    __jitter_ms         a random extra delay of at most this; with a time or a delay
    DELAY               a delay level; 0 is none
    TIMER_DELAY_SEC     a delay in seconds
    TIMER_DELAY_MS      a delay in milliseconds
    TIMER_DELIVER_MS    a delivery time, Unix milliseconds
    __once              send once by key; with the value `replace` move the due time
    TIMER_DEL_UNIQKEY   a delete marker: cancels the message of that id (or `topic+id`) in its topic

Those without underscores are RocketMQ's, with RocketMQ's meaning. RocketMQ lets one of several times win;
here they must agree (the message's `delivery_timestamp` counts as one), or the send is refused.

Owns these names and their allowed values; how far ahead a time may lie is checked by admission. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemill.core.errors import IllegalDelayError, IllegalLevelError, IllegalPropertyError
from tidemill.core.model import Once

DELETE_KEY = "TIMER_DEL_UNIQKEY"
_LEVEL = "DELAY"
_ONCE = "__once"
_ONCE_VALUES = {"": Once.KEEP, "true": Once.KEEP, "keep": Once.KEEP, "replace": Once.REPLACE}
_DELIVER_MS = "TIMER_DELIVER_MS"
_UNIT_MS = {"__delay_ms": 1, "TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": 1000}  # of the delays
_JITTER = "__jitter_ms"
_STEERING = frozenset((*_UNIT_MS, _DELIVER_MS, _LEVEL, _ONCE, _JITTER))
_DIGITS_MAX = 18


class Steering(NamedTuple):
    """The values of the properties, as a draft has them."""

    deliver_at_ms: int | None
    delay_ms: int | None = None
    level: int = 0
    once: Once = Once.NO
    jitter_ms: int = 0


def take_steering(properties: dict[str, str], delivery_timestamp_ms: int | None) -> Steering:
    """Take the properties that steer a send out of the others; refuse times that contradict each other."""
    names = _STEERING.intersection(properties)
    if not names:
        return Steering(delivery_timestamp_ms)
    given = {name: properties.pop(name) for name in names}
    level, once = _level(given), _once(given)
    delays_ms = {_number(name, given[name]) * _UNIT_MS[name] for name in names if name in _UNIT_MS}
    times_ms = {_number(_DELIVER_MS, given[_DELIVER_MS])} if _DELIVER_MS in names else set()
    if delivery_timestamp_ms is not None:
        times_ms.add(delivery_timestamp_ms)
    if len(delays_ms) + len(times_ms) + (level > 0) > 1:
        said = _said(given, delivery_timestamp_ms)
        raise IllegalDelayError(f"conflicting times: {said}; give only one of them")
    at_ms, delay_ms = (ms.pop() if ms else None for ms in (times_ms, delays_ms))
    jitter_ms = _number(_JITTER, given[_JITTER]) if _JITTER in names else 0
    return Steering(at_ms, delay_ms, level, once, jitter_ms)


def _said(given: Mapping[str, str], delivery_timestamp_ms: int | None) -> str:
    """The times as they were given."""
    said = [f"{name} is {text!r}" for name, text in sorted(given.items()) if name not in (_ONCE, _JITTER)]
    if delivery_timestamp_ms is not None:
        said.append(f"delivery_timestamp is {delivery_timestamp_ms} ms")
    return ", ".join(said)


def _number(name: str, text: str) -> int:
    if not _is_whole(text):
        unit = "seconds" if _UNIT_MS.get(name) == 1000 else "milliseconds"
        raise IllegalDelayError(f"{name} is {text[:40]!r}; {_advice(unit)}")
    return int(text)


def _level(given: Mapping[str, str]) -> int:
    text = given.get(_LEVEL)
    if text is None:
        return 0
    if not _is_whole(text):
        raise IllegalLevelError(f"{_LEVEL} is {text[:40]!r}; {_advice('the level')}")
    return int(text)


def _advice(what: str) -> str:
    return f"give {what} as a whole number of at most {_DIGITS_MAX} digits"


def _once(given: Mapping[str, str]) -> Once:
    text = given.get(_ONCE)
    if text is None:
        return Once.NO
    if text.lower() not in _ONCE_VALUES:
        raise IllegalPropertyError(f"{_ONCE} is {text[:40]!r}; use `keep` or `replace`")
    return _ONCE_VALUES[text.lower()]


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
