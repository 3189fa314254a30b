"""Builds the `Draft` of a send from its arguments: texts, durations, times, table rows.

Every draft gets an id here if it has none, so that a send may be repeated without being stored twice.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from tidemill.client.send.message_ids import IDS
from tidemill.client.tables.table_rows import rows_of
from tidemill.core.arguments import require_kind
from tidemill.core.durations import (
    SECONDS_END,
    Moment,
    Span,
    as_duration_ms,
    as_time_ms,
    column_duration_ms,
    column_time_ms,
)
from tidemill.core.errors import IllegalKeyError, IllegalPropertyError, RequestError
from tidemill.core.model import Draft, Once
from tidemill.core.table_columns import TIME_COLUMNS, check_jitter_once, check_known

Body = bytes | bytearray | memoryview | str
T = TypeVar("T")

_NOTHING: Mapping[str, str] = {}
_ONCES = {"true": True, "false": False}  # as a table may have it; the rest is as in a single send


def draft_of(
    topic: str,
    body: Body,
    delay: Span | None = None,
    at: Moment | None = None,
    level: int = 0,
    key: str | None = None,
    keys: Sequence[str] = (),
    tag: str | None = "",
    message_group: str | None = "",
    properties: Mapping[str, str] | None = None,
    once: bool | str | Once = False,
    id: str | None = None,  # noqa: A002 - the name people look for
    jitter: Span | None = None,
) -> Draft:
    """A message to send, from the arguments of a send."""
    return Draft(
        topic,
        body if type(body) is bytes else _body_of(body),
        None if at is None else at * 1_000 if type(at) is int and at < SECONDS_END else as_time_ms(at),
        None if delay is None else delay * 1_000 if type(delay) is int else as_duration_ms(delay),
        level,
        IDS.next() if id is None else id,
        _keys_of(key, keys) if keys else () if key is None else (key,),
        "" if tag is None else tag,
        "" if message_group is None else message_group,
        properties or _NOTHING,
        None,
        Once.NO if once is False else _once_of(once, id or key or keys),
        0 if jitter is None else jitter_ms_of(jitter),
    )


def jitter_ms_of(jitter: Span) -> int:
    """What a caller gives as `jitter`, in milliseconds; not negative."""
    try:
        return _not_negative_jitter(as_duration_ms(jitter))
    except RequestError as error:
        raise RequestError(f"jitter is wrong: {error}") from None


def _not_negative_jitter(jitter_ms: int) -> int:
    if jitter_ms < 0:
        raise RequestError(f"jitter {jitter_ms} ms is not possible; use 0 or more")
    return jitter_ms


def _body_of(body: Any) -> bytes:
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the body is not valid Unicode: {error.reason}; send it as bytes") from None
    # Not whatever bytes() takes: a number would become so many zeros.
    require_kind("body", body, (bytes, bytearray, memoryview), "a text or bytes (json.dumps makes a text)")
    return bytes(body)


def _keys_of(key: str | None, keys: Sequence[str]) -> tuple[str, ...]:
    require_kind("keys", keys, (list, tuple, set, frozenset), "a list of texts; one alone is key=")
    return tuple(keys) if key is None else (key, *keys)


def _once_of(once: bool | str | Once, is_named: object) -> Once:
    if isinstance(once, bool):
        once = Once.KEEP if once else Once.NO
    elif once in ("keep", "replace", "no"):
        once = Once(once)
    elif not isinstance(once, Once):
        raise RequestError(f"once={once!r} is unknown; use True, 'keep' or 'replace'")
    _require_name(once, is_named)
    return once


def _require_name(once: Once, is_named: object) -> None:
    if once is not Once.NO and not is_named:  # a generated id is new each time
        raise IllegalKeyError("sending once needs a key, or an id of your own; neither was given")


def with_id(draft: Any) -> Any:
    """The draft with an id of our own if it has none; what is no draft goes on, to be refused there."""
    if not isinstance(draft, Draft) or draft.id is not None:
        return draft
    _require_name(draft.once, draft.keys)
    fields = {name: getattr(draft, name) for name in Draft.__dataclass_fields__}
    return Draft(**{**fields, "id": IDS.next()})


# -- tables ---------------------------------------------------------------------------------------


def drafts_of_table(table: Any, topic: str | None, jitter_ms: int = 0) -> Iterator[Any]:
    """Drafts of an Arrow table or batch, a pandas frame, or any iterable of mappings.

    Columns are those of a bulk send: `body`, and any of `topic`, `deliver_at` (or `deliver_at_ms`),
    `delay_ms`, `jitter_ms`, `level`, `id`, `key`, `once`, `tag`, `message_group`, `properties`. In place of a
    row that cannot be a draft stands the `RequestError` that answers it. `jitter_ms` is that of every row.
    """
    return (_draft_or_fault(row, topic, jitter_ms) for row in rows_of(table, topic))


def _draft_or_fault(row: Any, topic: str | None, jitter_ms: int) -> Draft | RequestError:
    try:
        return _draft_of_row(row, topic, jitter_ms)
    except RequestError as fault:
        return fault


def _draft_of_row(row: Any, topic: str | None, jitter_ms: int) -> Draft:
    require_kind("a row", row, Mapping, "a mapping of columns to values")
    check_known(list(map(str, row)))
    if jitter_ms:
        check_jitter_once(row)
    values = {name: _given(value) for name, value in row.items()}
    if not (name := values.get("topic") or topic):
        raise RequestError("the row names no topic; name it in a column `topic`, or as an argument for all")
    if values.get("body") is None:
        raise RequestError("the body is null; use an empty one")
    if len(times := [name for name in TIME_COLUMNS if values.get(name) is not None]) > 1:
        raise RequestError(f"give only one of {' and '.join(times)}")
    once, key = values.get("once"), values.get("key") or None
    once = (_ONCES.get(once.lower(), once) if isinstance(once, str) else once) or False
    return Draft(
        name,
        _body_of(values["body"]),
        _moment(values.get("deliver_at"), values.get("deliver_at_ms")),
        _span("delay_ms", values.get("delay_ms")),
        _level(values.get("level")),
        IDS.next() if values.get("id") is None else values["id"],
        () if key is None else (key,),
        values.get("tag") or "",
        values.get("message_group") or "",
        _properties(values.get("properties")) or _NOTHING,
        None,
        Once.NO if once is False else _once_of(once, values.get("id") or key),
        jitter_ms or _not_negative_jitter(_span("jitter_ms", values.get("jitter_ms")) or 0),
    )


def _given(value: Any) -> Any:
    """None for what pandas calls missing; raises what stands for a value that could not be read."""
    if isinstance(value, RequestError):
        raise value
    try:
        return None if value is None or value != value else value
    except (TypeError, ValueError):  # pandas.NA is neither equal to itself nor not; nor is a NumPy array
        return None if type(value).__name__ == "NAType" else value


def _moment(*columns: Any) -> int | None:
    return next((column_time_ms(value) for value in columns if value is not None), None)


def _span(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        return column_duration_ms(_number(name, value))
    except RequestError as error:
        raise RequestError(f"{name} is wrong: {error}") from None


def _level(value: Any) -> int:
    if value is None:
        return 0
    number = _number("level", value)
    if isinstance(number, float | Decimal) and math.isfinite(number) and number == math.floor(number):
        return int(number)
    try:
        if not isinstance(number, bool):
            return operator.index(number)
    except TypeError:  # half a level is none
        pass
    raise RequestError(f"level must be a whole number, {value!r} was given")


def _number(name: str, value: Any) -> Any:
    """The number of a text of digits; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.strip().isdecimal() else float(value)
    except ValueError:
        raise RequestError(
            f"{name} {value!r} is not a number; give delays in ms and levels as numbers"
        ) from None


def _properties(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except (ValueError, RecursionError) as error:
        raise IllegalPropertyError(f"properties must be a JSON object of texts: {error}") from None
