"""The wire form of many sends at once, and of their answers: what a client puts together, a door takes apart.

    offset  bytes  field of a request
    0       4      magic "TMB1"
    4       4      length h of the header, little-endian
    8       h      header: a JSON object of columns, one value per message
    8+h     n      the bodies, one behind the other

Columns: `size` (bytes of the body), `topics` (distinct names) and `topic` (index into them; missing: all 0),
`id`, `due` (deliver at, ms), `delay` (ms), `level`, `keys`, `tag`, `group`, `props`, `once`. A column that
would hold only the default is left out. The answer is a JSON object: `broker`, columns `seq` and `due` (-1:
not timed), and, for the few that need it, by index: `ids`, `repeats`, `notes`, `errors` ([code, message]).

Owns both directions. Columns, because Python's own JSON reads and writes a list of plain values faster than
any format that is taken apart message by message. Nothing here checks what a message may be: that is the
broker's admission; here only the shape is checked, so that no request, however made, breaks the door.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from tidemill.core.error_codes import error_of
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.limits import FRAME_ROWS_MAX
from tidemill.core.model import NO_TIME_MS, Draft, Handle, Once, Receipt

CONTENT_TYPE = "application/x-tidemill-batch"
_HEAD = struct.Struct("<4sI")
_MAGIC = b"TMB1"
_MS_MAX = 1 << 53
_NULLABLE = ("id", "due", "delay")

Answer = Receipt | TidemillError

_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


# -- requests -------------------------------------------------------------------------------------


def encode_drafts(drafts: Sequence[Draft]) -> bytes:
    """A request that sends these drafts."""
    columns: dict[str, Any] = {"size": [len(draft.body) for draft in drafts]}
    topics: dict[str, int] = {}
    indexes = [topics.setdefault(draft.topic, len(topics)) for draft in drafts]
    columns["topics"] = list(topics)
    if len(topics) > 1:
        columns["topic"] = indexes
    given: tuple[tuple[str, list[Any]], ...] = (
        ("id", [draft.id for draft in drafts]),
        ("due", [draft.deliver_at_ms for draft in drafts]),
        ("delay", [draft.delay_ms for draft in drafts]),
        ("level", [draft.level for draft in drafts]),
        ("keys", [draft.keys for draft in drafts]),
        ("tag", [draft.tag for draft in drafts]),
        ("group", [draft.message_group for draft in drafts]),
        ("props", [dict(draft.properties) if draft.properties else None for draft in drafts]),
    )
    # A time of 0 is a time: a column that may hold None is left out only where it holds nothing else.
    columns |= {
        name: values
        for name, values in given
        if any(values) or (name in _NULLABLE and values.count(None) < len(values))
    }
    if any(draft.once is not Once.NO for draft in drafts):
        columns["once"] = [draft.once.value for draft in drafts]
    header = _dumps(columns).encode()
    return b"".join((_HEAD.pack(_MAGIC, len(header)), header, *[draft.body for draft in drafts]))


def decode_drafts(data: bytes) -> list[Draft]:
    """The drafts of a request; `RequestError` if the bytes are not one."""
    header, start = _header(data)
    sizes = header.get("size")
    if not isinstance(sizes, list) or len(sizes) > FRAME_ROWS_MAX:
        raise RequestError(f"a batch needs a column `size` of at most {FRAME_ROWS_MAX} values")
    count = len(sizes)
    bodies = _bodies(data, start, sizes)
    rows = zip(
        _topics(header, count),
        bodies,
        _column(header, "due", count, None, _is_ms_or_none),
        _column(header, "delay", count, None, _is_ms_or_none),
        _column(header, "level", count, 0, _is_level),
        _column(header, "id", count, None, _is_text_or_none),
        _keys(header, count),
        _column(header, "tag", count, "", _is_text),
        _column(header, "group", count, "", _is_text),
        _properties(header, count),
        repeat(None),
        _onces(header, count),
        strict=False,
    )
    return [Draft(*row) for row in rows]


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    try:
        magic, length = _HEAD.unpack_from(data)
        header = json.loads(data[_HEAD.size : _HEAD.size + length])
    except (struct.error, ValueError, RecursionError) as error:
        raise RequestError(f"not a batch of messages: {error}") from None
    if magic != _MAGIC or len(data) < _HEAD.size + length or not isinstance(header, dict):
        raise RequestError("not a batch of messages: it begins with TMB1, a length and a JSON object")
    return header, _HEAD.size + length


def _bodies(data: bytes, start: int, sizes: list[Any]) -> Iterator[bytes]:
    if not all(type(size) is int and size >= 0 for size in sizes) or start + sum(sizes) != len(data):
        raise RequestError("not a batch of messages: the sizes are not those of the bodies")
    at = start
    for size in sizes:
        yield data[at : at + size]
        at += size


def _column(
    header: dict[str, Any], name: str, count: int, default: Any, is_right: Callable[[Any], bool]
) -> Iterable[Any]:
    values = header.get(name)
    if values is None:
        return repeat(default, count)
    if not isinstance(values, list) or len(values) != count or not all(map(is_right, values)):
        raise RequestError(f"column {name!r} of the batch must hold {count} values of its type")
    return values


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_text_or_none(value: Any) -> bool:
    return value is None or type(value) is str


def _is_ms_or_none(value: Any) -> bool:
    return value is None or (type(value) is int and -_MS_MAX < value < _MS_MAX)


def _is_level(value: Any) -> bool:
    return type(value) is int and -1 << 15 < value < 1 << 15


def _is_keys(value: Any) -> bool:
    return not value or (type(value) is list and all(map(_is_text, value)))


def _is_properties(value: Any) -> bool:
    return value is None or (type(value) is dict and all(map(_is_text, value.values())))


def _topics(header: dict[str, Any], count: int) -> Iterable[str]:
    names = header.get("topics")
    if not isinstance(names, list) or not all(map(_is_text, names)) or (count and not names):
        raise RequestError("a batch needs the list `topics`")
    if "topic" not in header:
        return repeat(names[0] if names else "", count)
    indexes = _column(header, "topic", count, 0, lambda v: type(v) is int and 0 <= v < len(names))
    return [names[index] for index in indexes]


def _keys(header: dict[str, Any], count: int) -> Iterable[tuple[str, ...]]:
    if "keys" not in header:
        return repeat((), count)
    return [tuple(keys or ()) for keys in _column(header, "keys", count, (), _is_keys)]


def _properties(header: dict[str, Any], count: int) -> Iterable[dict[str, str]]:
    if "props" not in header:
        return repeat({}, count)
    return [values or {} for values in _column(header, "props", count, None, _is_properties)]


_ONCES = {once.value: once for once in Once}


def _onces(header: dict[str, Any], count: int) -> Iterable[Once]:
    if "once" not in header:
        return repeat(Once.NO, count)
    return [_ONCES[v] for v in _column(header, "once", count, "no", lambda v: v in ("no", "keep", "replace"))]


# -- answers --------------------------------------------------------------------------------------


def encode_answers(broker_id: str, answers: Sequence[Answer]) -> bytes:
    """The answer to a request: what became of each message, in its order."""
    columns: dict[str, Any] = {"broker": broker_id}
    seqs: list[int] = []
    dues: list[int] = []
    repeats: dict[int, str] = {}
    notes: dict[int, str] = {}
    errors: dict[int, list[str]] = {}
    for index, answer in enumerate(answers):
        if isinstance(answer, Receipt):
            seqs.append(answer.handle.seq if answer.handle is not None else -1)
            dues.append(answer.deliver_at_ms)
            if answer.is_repeat:
                repeats[index] = answer.id
            if answer.note:
                notes[index] = answer.note
        else:
            seqs.append(-1)
            dues.append(-1)
            errors[index] = [answer.code, str(answer)]
    columns["seq"], columns["due"] = seqs, dues
    special = (("repeats", repeats), ("notes", notes), ("errors", errors))
    columns |= {name: values for name, values in special if values}
    return _dumps(columns).encode()


def decode_answers(data: bytes, drafts: Sequence[Draft]) -> list[Answer]:
    """Each draft's answer. The drafts carry ids of their own, as a client's always do."""
    columns = json.loads(data)
    broker, seqs, dues = columns["broker"], columns["seq"], columns["due"]
    answers: list[Answer] = [
        Receipt(
            draft.id or "",
            draft.topic,
            None if due == NO_TIME_MS else Handle(broker, draft.topic, draft.id or "", seq),
            due,
        )
        for draft, seq, due in zip(drafts, seqs, dues, strict=True)
    ]
    repeats, notes = columns.get("repeats", {}), columns.get("notes", {})
    for index in {*repeats, *notes}:
        at = int(index)
        topic, seq, due = drafts[at].topic, seqs[at], dues[at]
        message_id = repeats.get(index) or drafts[at].id or ""
        handle = None if due == NO_TIME_MS else Handle(broker, topic, message_id, seq)
        answers[at] = Receipt(message_id, topic, handle, due, index in repeats, notes.get(index, ""))
    for index, (code, message) in columns.get("errors", {}).items():
        answers[int(index)] = error_of(code, message)
    return answers
