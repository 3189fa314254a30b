"""The wire form of many sends at once, and of their answers: what a client puts together, a door takes apart.

    offset  bytes  field of a request
    0       4      magic "TMB1"
    4       4      length h of the header, little-endian
    8       h      header: a JSON object of columns, one value per message
    8+h     n      the bodies, one behind the other

Columns: `size` (bytes of the body), `topics` (distinct names) and `topic` (index into them; missing: all 0),
`id`, `due` (deliver at, ms), `delay` (ms), `level`, `keys`, `tag`, `group`, `props`, `once`. A column that
would hold only the default is left out. The answer is a JSON object: `broker`, columns `seq` and `due` (-1:
not timed), `queue` and `offset` (where a message went at once; -1: it waits; left out where all do), and, for
the few that need it, by index: `repeats`, `notes`, `errors` ([code, message]).

Owns both directions. Columns, because Python's own JSON reads and writes a list of plain values faster than
any format that is taken apart message by message. Nothing here checks what a message may be: that is the
broker's admission; here only the shape is checked, so that no request, however made, breaks the door.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, repeat
from types import NoneType
from typing import Any

from tidemill.core.error_codes import error_of
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.limits import FRAME_ROWS_MAX, TIME_MS_MAX
from tidemill.core.model import NO_OFFSET, NO_QUEUE, NO_SEQ, NO_TIME_MS, Draft, Handle, Once, Receipt

CONTENT_TYPE = "application/x-tidemill-batch"
_HEAD = struct.Struct("<4sI")
_MAGIC = b"TMB1"
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


@dataclass(frozen=True, slots=True)
class SendColumns:
    """Many sends as they travel; None stands for a column that would hold only its default."""

    topics: list[str]  # distinct names
    topic: list[int] | None  # which of them each message is for; None: all for the first
    bodies: list[bytes]
    due: list[int | None] | None
    delay: list[int | None] | None
    level: list[int] | None
    id: list[str | None] | None
    keys: list[list[str] | None] | None
    tag: list[str] | None
    group: list[str] | None
    props: list[dict[str, str] | None] | None
    once: list[str] | None
    born: list[int | None] | None = None  # never travels: what came over a wire was born when it was stored

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
            strict=False,
        )
        return [Draft(*row) for row in rows]


def decode_columns(data: bytes) -> SendColumns:
    """The sends of a request; `RequestError` if the bytes are not one."""
    header, start = _header(data)
    sizes = header.get("size")
    if not isinstance(sizes, list) or len(sizes) > FRAME_ROWS_MAX:
        raise RequestError(f"a batch needs a column `size` of at most {FRAME_ROWS_MAX} values")
    count = len(sizes)
    topics = _topics(header, count)
    return SendColumns(
        topics,
        _column(header, "topic", count, _are_indexes_below(len(topics))),
        _bodies(data, start, sizes),
        _column(header, "due", count, are_ms_or_none),
        _column(header, "delay", count, are_ms_or_none),
        _column(header, "level", count, _are_levels),
        _column(header, "id", count, _are_texts_or_none),
        _column(header, "keys", count, _are_keys),
        _column(header, "tag", count, _are_texts),
        _column(header, "group", count, _are_texts),
        _column(header, "props", count, _are_properties),
        _column(header, "once", count, _are_onces),
    )


def decode_drafts(data: bytes) -> list[Draft]:
    """The sends of a request, message by message."""
    return decode_columns(data).drafts()


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    try:
        magic, length = _HEAD.unpack_from(data)
        header = json.loads(data[_HEAD.size : _HEAD.size + length])
    except (struct.error, ValueError, RecursionError) as error:
        raise RequestError(f"not a batch of messages: {error}") from None
    if magic != _MAGIC or len(data) < _HEAD.size + length or not isinstance(header, dict):
        raise RequestError("not a batch of messages: it begins with TMB1, a length and a JSON object")
    return header, _HEAD.size + length


def _bodies(data: bytes, start: int, sizes: list[Any]) -> list[bytes]:
    if not _are_numbers(sizes, TIME_MS_MAX) or min(sizes, default=0) < 0 or start + sum(sizes) != len(data):
        raise RequestError("not a batch of messages: the sizes are not those of the bodies")
    ends = list(accumulate(sizes, initial=start))
    return [data[at:end] for at, end in pairwise(ends)]


def _column(header: dict[str, Any], name: str, count: int, is_right: Callable[[list[Any]], bool]) -> Any:
    """The column of that name, if it is there, checked as a whole."""
    values = header.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != count or not is_right(values):
        raise RequestError(f"column {name!r} of the batch must hold {count} values of its type")
    return values


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


def _are_levels(values: list[Any]) -> bool:
    return _are_numbers(values, 1 << 15)


def _are_keys(values: list[Any]) -> bool:
    return all(not keys or (type(keys) is list and _are_texts(keys)) for keys in values)


def _are_properties(values: list[Any]) -> bool:
    return all(v is None or (type(v) is dict and _are_texts([*v.values()])) for v in values)


def _are_onces(values: list[Any]) -> bool:
    return all(value in ("no", "keep", "replace") for value in values)


def _are_indexes_below(count: int) -> Callable[[list[Any]], bool]:
    return lambda values: _are_numbers(values, count) and min(values, default=0) >= 0


def _topics(header: dict[str, Any], count: int) -> list[str]:
    names = header.get("topics")
    if not isinstance(names, list) or not _are_texts(names) or (count and not names):
        raise RequestError("a batch needs the list `topics`")
    return names


# -- answers --------------------------------------------------------------------------------------


def encode_answers(broker_id: str, answers: Sequence[Answer]) -> bytes:
    """The answer to a request: what became of each message, in its order."""
    rows: list[tuple[int, int, int, int]] = []
    repeats: dict[int, str] = {}
    notes: dict[int, str] = {}
    errors: dict[int, list[str]] = {}
    for index, answer in enumerate(answers):
        if isinstance(answer, Receipt):
            seq = answer.handle.seq if answer.handle is not None else NO_SEQ
            rows.append((seq, answer.deliver_at_ms, answer.queue, answer.offset))
            if answer.is_repeat:
                repeats[index] = answer.id
            if answer.note:
                notes[index] = answer.note
        else:
            rows.append((NO_SEQ, NO_TIME_MS, NO_QUEUE, NO_OFFSET))
            errors[index] = [answer.code, str(answer)]
    columns = _placed(broker_id, *([row[at] for row in rows] for at in range(4)))
    special = (("repeats", repeats), ("notes", notes), ("errors", errors))
    columns |= {name: values for name, values in special if values}
    return _dumps(columns).encode()


def encode_plain_answers(
    broker_id: str, seqs: list[int], dues: list[int], queues: list[int], offsets: list[int]
) -> bytes:
    """The answer to a request whose messages were all stored anew, with nothing more to say of any."""
    return _dumps(_placed(broker_id, seqs, dues, queues, offsets)).encode()


def _placed(
    broker_id: str, seqs: list[int], dues: list[int], queues: list[int], offsets: list[int]
) -> dict[str, Any]:
    columns: dict[str, Any] = {"broker": broker_id, "seq": seqs, "due": dues}
    if max(offsets, default=NO_OFFSET) > NO_OFFSET:
        columns |= {"queue": queues, "offset": offsets}
    return columns


def receipt_of_new(
    broker_id: str, draft: Draft, seq: int, due_ms: int, queue: int = NO_QUEUE, offset: int = NO_OFFSET
) -> Receipt:
    """The receipt of a draft with an id of its own that was stored anew."""
    message_id = draft.id or ""
    if due_ms == NO_TIME_MS:
        return Receipt(message_id, draft.topic, None, due_ms, queue=queue, offset=offset)
    return Receipt(message_id, draft.topic, Handle(broker_id, draft.topic, message_id, seq), due_ms)


def decode_answers(data: bytes, drafts: Sequence[Draft]) -> list[Answer]:
    """Each draft's answer. The drafts carry ids of their own, as a client's always do."""
    columns = json.loads(data)
    broker, seqs, dues = columns["broker"], columns["seq"], columns["due"]
    queues = columns.get("queue") or [NO_QUEUE] * len(seqs)
    offsets = columns.get("offset") or [NO_OFFSET] * len(seqs)
    answers: list[Answer] = [
        receipt_of_new(broker, *placed) for placed in zip(drafts, seqs, dues, queues, offsets, strict=True)
    ]
    repeats, notes = columns.get("repeats", {}), columns.get("notes", {})
    for index in {*repeats, *notes}:
        at = int(index)
        named = replace(drafts[at], id=repeats.get(index) or drafts[at].id)
        receipt = receipt_of_new(broker, named, seqs[at], dues[at], queues[at], offsets[at])
        answers[at] = replace(receipt, is_repeat=index in repeats, note=notes.get(index, ""))
    for index, (code, message) in columns.get("errors", {}).items():
        answers[int(index)] = error_of(code, message)
    return answers
