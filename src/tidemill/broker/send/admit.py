"""Admission of requests and drafts: every check that needs neither topic nor lock, on whole columns.

Owns the way from columns as they travel (`core/send_batch.py`), or from drafts, to a `SendBatch`. Where a
column has something wrong, or perhaps has, the messages are checked one by one (`admission.py`), so that each
has its own error; the others go on as columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tidemill.broker.send.admission import (
    are_words,
    check_carried,
    check_draft,
    check_keys,
    check_message_group,
    check_properties,
    check_tag,
    due_time_ms,
    level_columns,
)
from tidemill.broker.send.batch import ONCE_KEEP, ONCE_NO, ONCE_REPLACE, SendBatch
from tidemill.broker.send.draft_columns import columns_of
from tidemill.broker.send.jitter import has_sound_jitter
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import RequestError
from tidemill.core.limits import ID_CHARS_MAX, PROPERTIES_BYTES_MAX
from tidemill.core.model import NO_TIME_MS, Draft, Once
from tidemill.core.send_batch import SendColumns
from tidemill.log.arrays import I64, each_of, numbers_to
from tidemill.store.formats.message_format import encode_properties

_ONCES = {Once.NO.value: ONCE_NO, Once.KEEP.value: ONCE_KEEP, Once.REPLACE.value: ONCE_REPLACE}
_Column = Sequence[Any] | None
_LEVEL_MAX = 1 << 62


class _Doubt(Exception):
    """A column that may have something wrong."""


def admit(
    columns: SendColumns,
    settings: BrokerSettings,
    now_ms: int,
    drafts: Sequence[Draft] = (),
    errors: Mapping[int, RequestError] | None = None,
) -> SendBatch:
    """Check a request; `drafts`: its messages, where they are at hand; `errors`: what is refused already."""
    if not errors:
        try:
            return _batch_of(columns, settings, now_ms, {})
        except (RequestError, _Doubt):
            pass
    return _one_by_one(drafts or columns.drafts(), settings, now_ms, errors or {})


def admit_drafts(drafts: Sequence[Draft], settings: BrokerSettings, now_ms: int) -> SendBatch:
    """Check drafts, whose fields may be of any kind."""
    columns = columns_of(drafts)
    if columns is None:
        return _one_by_one(drafts, settings, now_ms, {})
    return admit(columns, settings, now_ms, drafts)


def _one_by_one(
    drafts: Sequence[Draft], settings: BrokerSettings, now_ms: int, known: Mapping[int, RequestError]
) -> SendBatch:
    """Check messages one by one; in the columns an empty one stands for each that is wrong."""
    errors = dict(known)
    exact: list[Draft] = []
    for row, draft in enumerate(drafts):
        try:
            if row not in errors:
                check_draft(draft, settings)
                due_time_ms(draft, settings, now_ms)
        except RequestError as error:
            errors[row] = error
        name = getattr(draft, "topic", "")
        exact.append(
            _of_exact_kinds(draft) if row not in errors else Draft(name if type(name) is str else "", b"")
        )
    columns = columns_of(exact, is_checked=True)
    assert columns is not None
    return _batch_of(columns, settings, now_ms, errors, is_checked=True)


def _of_exact_kinds(draft: Draft) -> Draft:
    """A draft that passed the checks, with fields that columns can be made of."""
    due_ms = draft.deliver_at_ms
    return replace(
        draft,
        body=bytes(draft.body),
        deliver_at_ms=None if due_ms is None else max(due_ms, NO_TIME_MS),  # the past is at once
        level=min(draft.level or 0, _LEVEL_MAX),
        jitter_ms=draft.jitter_ms or 0,
        properties=dict(draft.properties),
        carried=dict(draft.carried),
    )


# -- columns, checked and encoded -----------------------------------------------------------------


def _batch_of(
    columns: SendColumns,
    settings: BrokerSettings,
    now_ms: int,
    errors: dict[int, RequestError],
    *,
    is_checked: bool = False,
) -> SendBatch:
    """The batch; raises if something in it is wrong, or perhaps is and was not checked message by message."""
    count, latest_ms = len(columns.bodies), now_ms + settings.max_delay_ms
    due, notes = _due(columns, now_ms, latest_ms), None
    levels: I64 | int = 0
    if columns.level:
        due, levels, notes = _levels(columns.level, due, settings, now_ms)
    if isinstance(due, int):
        timed = numbers_to(0 if due == NO_TIME_MS else count)
    else:
        timed = (due != NO_TIME_MS).nonzero()[0]
    lacks_ids = columns.id is None or None in columns.id
    tags, keys, groups = _tags(columns.tag), _keys(columns.keys), _groups(columns.group)
    properties = _properties(columns.props, columns.carried)
    if not is_checked:
        _check_sizes(columns.bodies, tags, keys, properties, settings)
    born_ms: I64 | None = None
    if columns.born:
        born_ms = np.array([now_ms if at is None else at for at in columns.born], np.int64)
    topics, which = columns.topics, None
    if columns.topic is not None:
        topics, which = _topics(topics, columns.topic)
    return SendBatch(
        count,
        now_ms,
        topics,
        which,
        due,
        timed,
        columns.bodies,
        None if columns.id is None else _ids(columns.id, lacks_some=lacks_ids),
        lacks_ids,
        tags,
        keys,
        groups,
        properties,
        levels,
        born_ms,
        _onces(columns) if columns.once else None,
        _jitter(columns.jitter, due, levels, groups, latest_ms) if columns.jitter else None,
        np.array(columns.made, np.bool_) if columns.made else None,
        notes,
        errors,
    )


def _check_sizes(
    bodies: list[bytes],
    tags: list[bytes] | None,
    keys: list[bytes] | None,
    properties: list[bytes] | None,
    settings: BrokerSettings,
) -> None:
    """Doubt about bodies, or tags, keys and properties together, that may be too large in one message."""
    most = settings.body_bytes_max
    if sum(map(len, bodies)) > most and max(map(len, bodies)) > most:
        raise _Doubt
    if tags or keys or properties:
        longest = (max(map(len, column)) for column in (tags, keys, properties) if column)
        if sum(longest) > PROPERTIES_BYTES_MAX:
            raise _Doubt


def _topics(names: list[str], topic: Sequence[int]) -> tuple[list[str], I64 | None]:
    """The names that are used, and each row's index among them."""
    used = sorted(set(topic))
    if len(used) == 1:
        return [names[used[0]]], None
    which = np.array(topic, np.int64)
    if len(used) == len(names):
        return names, which
    return [names[index] for index in used], np.searchsorted(np.array(used), which)


def _ids(ids: Sequence[Any], *, lacks_some: bool) -> list[bytes]:
    """The ids, empty where there is none."""
    given = [text for text in ids if text is not None] if lacks_some else ids
    if given and not are_words(given, ID_CHARS_MAX):
        raise _Doubt
    return (
        [b"" if text is None else text.encode() for text in ids] if lacks_some else list(map(str.encode, ids))
    )


def _due(columns: SendColumns, now_ms: int, latest_ms: int) -> I64 | int:
    """When each message is due, or all are."""
    given, start_ms = (columns.due, 0) if columns.delay is None else (columns.delay, now_ms)
    if columns.delay is not None and min(filter(None, columns.delay), default=0) < 0:
        raise _Doubt
    if columns.due is not None and columns.delay is not None:
        if any(a is not None and b is not None for a, b in zip(columns.due, columns.delay, strict=True)):
            raise _Doubt
        later = [None if ms is None else ms + now_ms for ms in columns.delay]
        given, start_ms = [b if a is None else a for a, b in zip(columns.due, later, strict=True)], 0
    if not given:
        return NO_TIME_MS
    first = given[0]
    if first is not None and given.count(first) == len(given):
        if first + start_ms > latest_ms:
            raise _Doubt
        return max(first + start_ms, 0)
    if None in given:
        due = np.array([NO_TIME_MS if at is None else max(at + start_ms, 0) for at in given], np.int64)
    else:
        due = np.maximum(np.array(given, np.int64) + start_ms, 0)
    if int(due.max()) > latest_ms:
        raise _Doubt
    return due


def _levels(
    levels: Sequence[int], due: I64 | int, settings: BrokerSettings, now_ms: int
) -> tuple[I64, I64, list[str] | None]:
    """When each message is due, the level it is on, and notes where that is another one than asked for."""
    own, used, notes = level_columns(np.array(levels, np.int64), settings, now_ms)
    dues: I64 = each_of(due, len(levels))
    if (dues[used > 0] != NO_TIME_MS).any():
        raise _Doubt
    return np.where(used > 0, own, dues), used, notes


def _jitter(
    jitter: Sequence[int], due: I64 | int, levels: I64 | int, groups: list[bytes] | None, latest_ms: int
) -> I64:
    jitter_ms, count = np.array(jitter, np.int64), len(jitter)
    has_group = np.array([bool(g) for g in groups]) if groups else np.zeros(count, np.bool_)
    in_order = has_group | (each_of(levels, count) > 0)
    if not has_sound_jitter(jitter_ms, each_of(due, count), in_order, latest_ms):
        raise _Doubt
    return jitter_ms


def _onces(columns: SendColumns) -> I64:
    """How each message is sent once, if those that are name what they repeat."""
    assert columns.once is not None
    keys: Sequence[Any] = columns.keys or [()] * len(columns)
    ids: Sequence[Any] = columns.id or [None] * len(columns)
    made: Sequence[bool] = columns.made or [False] * len(columns)
    for once, own_keys, own_id, is_made in zip(columns.once, keys, ids, made, strict=True):
        if once == Once.NO.value or len(own_keys or ()) == 1:
            continue
        if own_keys or once != Once.KEEP.value or own_id is None or is_made:
            raise _Doubt
    return np.array([_ONCES[once] for once in columns.once], np.int64)


def _tags(tags: _Column) -> list[bytes] | None:
    if not tags:
        return None
    for tag in set(tags) - {""}:
        check_tag(tag)
    return [tag.encode() for tag in tags]


def _groups(groups: _Column) -> list[bytes] | None:
    if not groups:
        return None
    for group in set(groups) - {""}:
        check_message_group(group)
    return [group.encode() for group in groups] if any(groups) else None


def _keys(keys: _Column) -> list[bytes] | None:
    if not keys:
        return None
    for given in keys:
        if given:
            check_keys(given)
    return [" ".join(given).encode() if given else b"" for given in keys]


def _properties(props: _Column, carried: _Column) -> list[bytes] | None:
    for given in props or ():
        if given:
            check_properties(given)
    for given in carried or ():
        if given:
            check_carried(given)
    every = props or carried
    if props and carried:
        every = [{**(own or {}), **(other or {})} for own, other in zip(props, carried, strict=True)]
    if not every:
        return None
    return [encode_properties(given).encode() if given else b"" for given in every]
