"""From what people pass to a send to the `Draft` that travels: texts, spans, moments, tables.

Every draft gets an id here if it brings none, so that a send may be repeated without being stored twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from tidemill.client.message_ids import IDS
from tidemill.core.arguments import require_kind
from tidemill.core.durations import Moment, Span, as_duration_ms, as_time_ms
from tidemill.core.errors import RequestError
from tidemill.core.model import Draft, Once

Body = bytes | bytearray | memoryview | str
T = TypeVar("T")

_COLUMNS = {
    *("topic", "body", "deliver_at", "deliver_at_ms", "delay_ms", "level", "id", "key", "once", "tag"),
    *("message_group", "properties"),
}
_NOTHING: Mapping[str, str] = {}


def draft_of(
    topic: str,
    body: Body,
    *,
    delay: Span | None = None,
    at: Moment | None = None,
    level: int = 0,
    key: str | None = None,
    keys: Sequence[str] = (),
    tag: str = "",
    group: str = "",
    properties: Mapping[str, str] | None = None,
    once: bool | str | Once = False,
    id: str | None = None,  # noqa: A002 - the name people look for
) -> Draft:
    """A message to send, from what a caller says."""
    return Draft(
        topic,
        body if type(body) is bytes else _body_of(body),
        None if at is None else at if type(at) is int else as_time_ms(at),
        None if delay is None else delay if type(delay) is int else as_duration_ms(delay),
        level,
        id or IDS.next(),
        _keys_of(key, keys) if keys else () if key is None else (key,),
        tag,
        group,
        properties or _NOTHING,
        None,
        Once.NO if once is False else _once_of(once),
    )


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


def _once_of(once: bool | str | Once) -> Once:
    if isinstance(once, Once):
        return once
    if isinstance(once, bool):
        return Once.KEEP if once else Once.NO
    if once in ("keep", "replace", "no"):
        return Once(once)
    raise RequestError(f"once={once!r} is unknown; use True, 'keep' or 'replace'")


def with_id(draft: Draft) -> Draft:
    """The draft with an id of our own if it has none."""
    if draft.id is not None:
        return draft
    fields = {name: getattr(draft, name) for name in Draft.__dataclass_fields__}
    return Draft(**{**fields, "id": IDS.next()})


def drafts_of_table(table: Any, topic: str | None) -> Iterator[Draft]:
    """Drafts of an Arrow table or batch, a pandas frame, or any iterable of mappings.

    Columns are those of a bulk send: `body`, and any of `topic`, `deliver_at` (or `deliver_at_ms`),
    `delay_ms`, `level`, `id`, `key`, `once`, `tag`, `message_group`, `properties`.
    """
    for row in _rows_of(table):
        unknown = set(row) - _COLUMNS
        if unknown:
            raise RequestError(f"unknown columns {sorted(unknown)}; known are {sorted(_COLUMNS)}")
        name = row.get("topic") or topic
        if not name or row.get("body") is None:
            raise RequestError("a table needs a `body`, and its topic either as a column or as an argument")
        properties = _given(row.get("properties"))
        yield draft_of(
            name,
            row["body"],
            at=_moment(_given(row.get("deliver_at", row.get("deliver_at_ms")))),
            delay=_whole(_given(row.get("delay_ms"))),
            level=_whole(_given(row.get("level"))) or 0,
            once=_given(row.get("once")) or False,
            id=_given(row.get("id")),
            key=_given(row.get("key")) or None,
            tag=_given(row.get("tag")) or "",
            group=_given(row.get("message_group")) or "",
            properties=json.loads(properties) if isinstance(properties, str) and properties else properties,
        )


def _rows_of(table: Any) -> Iterator[Any]:
    """Each row as a mapping."""
    if hasattr(table, "to_batches"):  # an Arrow table, batch by batch so that it is never all in Python
        for batch in table.to_batches():
            yield from batch.to_pylist()
    elif hasattr(table, "to_pylist"):
        yield from table.to_pylist()
    elif hasattr(table, "itertuples"):  # a pandas frame
        names = [str(name) for name in table.columns]
        for values in table.itertuples(index=False, name=None):
            yield dict(zip(names, values, strict=True))
    else:
        yield from table


def _given(value: Any) -> Any:
    """None for what pandas calls missing."""
    return None if value is None or value != value else value


def _whole(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        raise RequestError(
            f"{value!r} is not a whole number; give delays in ms and levels as numbers"
        ) from None


def _moment(value: Any) -> Any:
    if value is None or isinstance(value, str) or hasattr(value, "tzinfo"):
        return value
    return int(value)


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of at most `size`."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
