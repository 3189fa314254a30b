"""The wire format of a batch of sends: encoded by a client, decoded by an endpoint.

    offset  bytes  field of a request
    0       4      magic "TMB1", or "TMB2"
    4       4      length h of the header, little-endian
    8       h      header: a JSON object of columns, one value per message
    8+h     n      the bodies, one behind the other

Columns: `size` (bytes of the body), `topics` (distinct names) and `topic` (index into them; missing: all 0),
`id`, `due` (deliver at, ms), `delay` (ms), `level`, `keys`, `tag`, `group`, `props`, `once`, `jitter` (ms). A
column that would hold only the default is left out. Where all messages have the same `size`, `due`, `delay`
or `jitter`, that one number may stand for the column (`count` says how many they are, 4,096 at most), and ids
that are equally long may come as one text, `ids`.

A request with the magic "TMB1" has none of the columns that came later, of which `jitter` is the first, and
what else it has is passed over. One with "TMB2" has only columns that the reader must know: a broker that
does not refuses it, instead of storing the messages without what they asked for.

Owns both directions; `send_answers.py` has the answers. Columns, because Python's own JSON reads and writes a
list of plain values faster than any format that is decoded message by message. Nothing here checks what a
message may be: that is the broker's admission; here only the shape is checked, so that no request, however
made, breaks the endpoint.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from types import NoneType
from typing import Any

from tidemill.core.arguments import shown_as_json
from tidemill.core.errors import RequestError
from tidemill.core.frozen import frozen
from tidemill.core.limits import FRAME_ROWS_MAX, SHARED_ROWS_MAX, TIME_MS_MAX
from tidemill.core.model import Draft, Once

NOT_A_BATCH = "not a batch of messages: it begins with"  # by which clients know an older broker
_GARBAGE = f"{NOT_A_BATCH} TMB1 or TMB2, the length of its header and a JSON object"
CONTENT_TYPE = "application/x-tidemill-batch"
_HEAD = struct.Struct("<4sI")
_MAGIC, _STRICT_MAGIC = b"TMB1", b"TMB2"
_LATER_COLUMNS = ("jitter",)  # in requests with the strict magic alone

# What stands for a message in a column that its request left out: every column but `topic`.
_DEFAULTS: dict[str, Any] = {
    "due": None,
    "delay": None,
    "level": 0,
    "id": None,
    "keys": None,
    "tag": "",
    "group": "",
    "props": None,
    "once": Once.NO.value,
    "jitter": 0,
    "born": None,
    "carried": None,
    "made": False,
}

_load = json.JSONDecoder().raw_decode
dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


# -- requests -------------------------------------------------------------------------------------


def encode_drafts(drafts: Sequence[Draft]) -> bytes:
    """A request that sends these drafts."""
    bodies = [draft.body for draft in drafts]
    sizes = list(map(len, bodies))
    topics: dict[str, int] = {}
    indexes = [topics.setdefault(draft.topic, len(topics)) for draft in drafts]
    columns: dict[str, Any] = {
        "count": len(drafts),
        "size": one_or_all(sizes) if len(sizes) <= SHARED_ROWS_MAX else sizes,
        "topics": list(topics),
    }
    if len(topics) > 1:
        columns["topic"] = indexes
    # A time of 0 is a time: a column that may hold None is left out only where it holds nothing else.
    for name, times in (
        ("due", [draft.deliver_at_ms for draft in drafts]),
        ("delay", [draft.delay_ms for draft in drafts]),
    ):
        if times.count(None) < len(times):
            columns[name] = one_or_all(times)
    columns |= _ids([draft.id for draft in drafts])
    others: tuple[tuple[str, list[Any]], ...] = (
        ("level", [draft.level for draft in drafts]),
        ("keys", [draft.keys for draft in drafts]),
        ("tag", [draft.tag for draft in drafts]),
        ("group", [draft.message_group for draft in drafts]),
        ("props", [dict(draft.properties) if draft.properties else None for draft in drafts]),
    )
    columns |= {name: values for name, values in others if any(values)}
    onces = [draft.once for draft in drafts]
    if onces.count(Once.NO) < len(onces):
        columns["once"] = [once.value for once in onces]
    magic = _MAGIC
    if any(jitter := [draft.jitter_ms for draft in drafts]):
        columns["jitter"], magic = one_or_all(jitter), _STRICT_MAGIC
    header = dumps(columns).encode()
    return b"".join((_HEAD.pack(magic, len(header)), header, *bodies))


def one_or_all(values: list[Any]) -> Any:
    """The value that all of them have, if it is a number; else the values."""
    are_same = bool(values) and values.count(values[0]) == len(values) and set(map(type, values)) == {int}
    return values[0] if are_same else values


def _ids(ids: list[str | None]) -> dict[str, Any]:
    """The column of ids: one text where they are equally long, as those that the client makes are."""
    given = ids.count(None)
    if given == len(ids):
        return {}
    if given or len(set(map(len, ids))) > 1:  # type: ignore[arg-type]
        return {"id": ids}
    return {"ids": "".join(ids)}  # type: ignore[arg-type]


@frozen
class SendColumns:
    """Many sends as they travel; None stands for a column that would hold only its default."""

    topics: list[str]  # distinct names
    bodies: list[bytes]
    topic: list[int] | None = None  # which of them each message is for; None: all for the first
    due: list[int | None] | None = None
    delay: list[int | None] | None = None
    level: list[int] | None = None
    id: list[str | None] | None = None
    keys: list[list[str] | None] | None = None
    tag: list[str] | None = None
    group: list[str] | None = None
    props: list[dict[str, str] | None] | None = None
    once: list[str] | None = None
    jitter: list[int] | None = None
    # None of these travels: what came over this wire was born when it was stored, carries nothing, and has no
    # id that a library made.
    born: list[int | None] | None = None
    carried: list[dict[str, str] | None] | None = None
    made: list[bool] | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    def drafts(self) -> list[Draft]:
        """The same, message by message."""
        names = [*self.topics, ""]
        rows = zip(
            map(names.__getitem__, self.topic or repeat(0)),
            self.bodies,
            self.due or repeat(None),
            self.delay or repeat(None),
            self.level or repeat(0),
            self.id or repeat(None),
            [tuple(keys or ()) for keys in self.keys] if self.keys else repeat(()),
            self.tag or repeat(""),
            self.group or repeat(""),
            [values or {} for values in self.props] if self.props else repeat({}),
            repeat(None),
            map(Once, self.once) if self.once else repeat(Once.NO),
            self.jitter or repeat(0),
            strict=False,
        )
        return [Draft(*row) for row in rows]


def join_columns(parts: Sequence[SendColumns]) -> SendColumns:
    """What several requests send, as one."""
    topics: dict[str, int] = {}
    which: list[int] = []
    for part in parts:
        own = [topics.setdefault(name, len(topics)) for name in part.topics]
        which.extend(own[:1] * len(part) if part.topic is None else map(own.__getitem__, part.topic))
    joined: dict[str, list[Any]] = {}
    for name, default in _DEFAULTS.items():
        columns = [getattr(part, name) for part in parts]
        if any(column is not None for column in columns):
            filled = (
                [default] * len(part) if column is None else column
                for part, column in zip(parts, columns, strict=True)
            )
            joined[name] = list(chain.from_iterable(filled))
    bodies = list(chain.from_iterable(part.bodies for part in parts))
    return SendColumns(list(topics), bodies, topic=which if len(topics) > 1 else None, **joined)


def decode_columns(data: bytes) -> SendColumns:
    """The sends of a request; `RequestError` if the bytes are not one."""
    header, start = _header(data)
    sizes: Any = header.get("size")
    is_list = isinstance(sizes, list)
    count = header.get("count", len(sizes) if is_list else None)
    if type(count) is not int or not (len(sizes) == count if is_list else type(sizes) is int):
        raise RequestError("a batch needs a column `size`, or one value and the `count`")
    # Of what costs a caller nothing, not as many as of what it must write down.
    most = FRAME_ROWS_MAX if is_list else SHARED_ROWS_MAX
    if not 0 <= count <= most:
        raise RequestError(f"a batch has at most {most} messages, {count} were announced; send it in parts")
    topics = _topics(header, count)
    columns: dict[str, Any] = {}
    for name, values in header.items():
        if name in _CHECKS:
            columns[name] = _column(name, values, count)
    if columns.get("topic") is not None and max(columns["topic"], default=0) >= len(topics):
        raise RequestError("column 'topic' of the batch must hold indexes into `topics`")
    if "ids" in header:
        columns["id"] = _cut_ids(header["ids"], count)
    return SendColumns(topics=topics, bodies=_bodies(data, start, sizes, count), **columns)


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    try:
        magic, length = _HEAD.unpack_from(data)
        text = str(data[_HEAD.size : _HEAD.size + length], "utf-8")
        header, end = _load(text)
    except (struct.error, ValueError, RecursionError):
        raise RequestError(_GARBAGE) from None
    is_whole = end == len(text) and len(data) >= _HEAD.size + length
    if magic not in (_MAGIC, _STRICT_MAGIC) or not is_whole or not isinstance(header, dict):
        raise RequestError(_GARBAGE)
    if magic == _STRICT_MAGIC:
        if unknown := sorted(header.keys() - _KNOWN):
            raise RequestError(
                f"unknown batch column {unknown[0][:40]!r}: upgrade the broker, it is older than the client"
            )
    elif later := [name for name in _LATER_COLUMNS if name in header]:
        raise RequestError(f"column {later[0]!r} of the batch needs the magic TMB2 instead of TMB1")
    return header, _HEAD.size + length


def _bodies(data: bytes, start: int, sizes: Any, count: int) -> list[bytes]:
    if type(sizes) is int:
        if sizes < 0 or start + sizes * count != len(data):
            raise RequestError("not a batch of messages: the size is not that of the bodies")
        return [data[at : at + sizes] for at in range(start, len(data), sizes)] if sizes else [b""] * count
    if not _are_numbers(sizes, TIME_MS_MAX) or min(sizes, default=0) < 0 or start + sum(sizes) != len(data):
        raise RequestError("not a batch of messages: the sizes are not those of the bodies")
    ends = list(accumulate(sizes, initial=start))
    return [data[at:end] for at, end in pairwise(ends)]


def _cut_ids(joined: Any, count: int) -> list[str]:
    """Ids that are equally long, from the one text they came in."""
    if type(joined) is not str or (len(joined) % count if count else joined):
        raise RequestError("`ids` of the batch must be one text of equally long ids")
    width = len(joined) // count if count else 0
    return [joined[at : at + width] for at in range(0, len(joined), width)] if width else [""] * count


def _column(name: str, values: Any, count: int) -> list[Any] | None:
    """A column, checked as a whole; one number stands for all, where that may be."""
    if values is None:
        return None
    if type(values) is int and name in _MAY_BE_ONE and -TIME_MS_MAX < values < TIME_MS_MAX:
        return [values] * count
    is_right, wanted = _CHECKS[name]
    if type(values) is int and name in _MAY_BE_ONE:
        values = [values]
    elif not isinstance(values, list):
        raise RequestError(f"column {name!r} of the batch must be a list, {shown_as_json(values)} was given")
    elif len(values) != count:
        raise RequestError(
            f"column {name!r} of the batch has length {len(values)}; use {count}, one value per message"
        )
    elif is_right(values):
        return values
    row = next(row for row, value in enumerate(values) if not is_right([value]))
    given = shown_as_json(values[row])
    raise RequestError(f"column {name!r} of the batch: {given} in row {row} is not possible; use {wanted}")


def _are_texts(values: list[Any]) -> bool:
    return set(map(type, values)) <= {str}


def _are_texts_or_none(values: list[Any]) -> bool:
    return set(map(type, values)) <= {str, NoneType}


def _are_numbers(values: list[Any], limit: int) -> bool:
    if not set(map(type, values)) <= {int}:
        return False
    return not values or (-limit < min(values) and max(values) < limit)


def are_ms_or_none(values: list[Any]) -> bool:
    """Whether each is a whole number that a time can be reckoned with, or None."""
    given = [value for value in values if value is not None] if None in values else values
    return _are_numbers(given, TIME_MS_MAX)


def _are_whole(values: list[Any]) -> bool:
    return _are_numbers(values, TIME_MS_MAX)


def _are_keys(values: list[Any]) -> bool:
    return all(not keys or (type(keys) is list and _are_texts(keys)) for keys in values)


def _are_properties(values: list[Any]) -> bool:
    return all(v is None or (type(v) is dict and _are_texts([*v.values()])) for v in values)


def _are_onces(values: list[Any]) -> bool:
    return all(value in ("no", "keep", "replace") for value in values)


def _are_indexes(values: list[Any]) -> bool:
    return _are_numbers(values, FRAME_ROWS_MAX) and min(values, default=0) >= 0


_MAY_BE_ONE = ("due", "delay", "jitter")
_NUMBER = f"a whole number below {TIME_MS_MAX}"
# Of each column, whether values are of its type, and what that is.
_CHECKS: dict[str, tuple[Callable[[list[Any]], bool], str]] = {
    "topic": (_are_indexes, "an index into `topics`"),
    "due": (are_ms_or_none, f"{_NUMBER}, or null"),
    "delay": (are_ms_or_none, f"{_NUMBER}, or null"),
    "level": (_are_whole, _NUMBER),
    "id": (_are_texts_or_none, "a text or null"),
    "keys": (_are_keys, "a list of texts"),
    "tag": (_are_texts, "a text"),
    "group": (_are_texts, "a text"),
    "props": (_are_properties, "an object of texts"),
    "once": (_are_onces, "`no`, `keep` or `replace`"),
    "jitter": (_are_whole, _NUMBER),
}
_KNOWN = {"count", "size", "topics", "ids", *_CHECKS}


def _topics(header: dict[str, Any], count: int) -> list[str]:
    names = header.get("topics")
    if not isinstance(names, list) or not _are_texts(names) or (count and not names):
        raise RequestError("a batch needs the list `topics`")
    return names
