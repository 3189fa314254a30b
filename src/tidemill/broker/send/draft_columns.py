"""Drafts turned into columns, so that many single sends take the quick way of those that come in columns.

Pure. Only drafts whose every field is of the very type it should have are turned: what is odd in any way is
left to the sender, which looks at each field and says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.core.model import Draft, Once
from tidemill.core.send_batch import SendColumns, are_ms_or_none


def columns_of(drafts: Sequence[Draft]) -> SendColumns | None:
    """The columns of these drafts; None if one of them is not an ordinary draft with an id of its own."""
    if set(map(type, drafts)) != {Draft} or any(draft.once is not Once.NO for draft in drafts):
        return None
    topic = [draft.topic for draft in drafts]
    ids = [draft.id for draft in drafts]
    bodies = [draft.body for draft in drafts]
    tags = [draft.tag for draft in drafts]
    due, delay, born = (
        _times([draft.deliver_at_ms for draft in drafts]),
        _times([draft.delay_ms for draft in drafts]),
        _times([draft.born_at_ms for draft in drafts]),
    )
    jitter = _jitter([draft.jitter_ms for draft in drafts])
    are_ordinary = (
        set(map(type, topic)) == set(map(type, ids)) == set(map(type, tags)) == {str}
        and set(map(type, bodies)) == {bytes}
        and all(draft.level == 0 and draft.message_group == "" for draft in drafts)
        and None not in (due, delay, born, jitter)
    )
    keys = _keys(drafts)
    properties = _properties([draft.properties for draft in drafts])
    carried = _properties([draft.carried for draft in drafts])
    if not are_ordinary or keys is None or properties is None or carried is None:
        return None
    numbers: dict[str, int] = {}
    which = [numbers.setdefault(name, len(numbers)) for name in topic]
    return SendColumns(
        topics=list(numbers),
        topic=which if len(numbers) > 1 else None,
        bodies=bodies,
        due=due or None,
        delay=delay or None,
        level=None,
        id=ids,
        keys=keys or None,
        tag=tags if any(tags) else None,
        group=None,
        props=properties or None,
        once=None,
        jitter=jitter or None,
        born=born or None,
        carried=carried or None,
    )


def _times(values: list[Any]) -> list[int | None] | None:
    """The column, empty if it holds no time at all; None if a value is none that can be reckoned with."""
    if values.count(None) == len(values):
        return []
    return values if are_ms_or_none(values) else None


def _jitter(values: list[Any]) -> list[int] | None:
    """The column, empty if nothing has a jitter; None if a value is no number."""
    if not any(values):
        return []
    return values if None not in values and are_ms_or_none(values) else None


def _keys(drafts: Sequence[Draft]) -> list[list[str] | None] | None:
    """The column, empty if there is no key; None if one is no text."""
    keys = [draft.keys for draft in drafts]
    if keys.count(()) == len(keys):
        return []
    if not set(map(type, keys)) <= {tuple, list} or any(type(key) is not str for of in keys for key in of):
        return None
    return [list(of) for of in keys]


def _properties(every: list[Any]) -> list[dict[str, str] | None] | None:
    """The column, empty if there is no property; None if one is no text."""
    if set(map(type, every)) != {dict}:
        return None
    if not any(every):
        return []
    if any(type(text) is not str for of in every for pair in of.items() for text in pair):
        return None
    return [dict(of) for of in every]
