"""Parses Flight requests: the JSON of a ticket or command, and the columns of a cancel.

    {"table": "pending" | "history" | "messages" | "queues", "topic": "orders", "key": "order-17",
     "from_ms": 0, "to_ms": 1900000000000, "from_seq": 0, "to_seq": 5000, "queues": [0],
     "offsets": {"0": 1200}, "until": {"0": 2400}, "columns": ["id", "deliver_at"],
     "where": [["lateness_ms", ">", 50]]}

A descriptor may also be a path: `pending`, `history`, or `messages` and a topic. Nothing here touches the
broker.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from tidemill.broker.query.table_conditions import Condition
from tidemill.broker.query.table_schemas import FOREVER_MS, Wanted
from tidemill.broker.query.table_views import PARTS_MAX
from tidemill.broker.send.admission import check_topic_name
from tidemill.core.errors import MalformedRequestError, RequestError
from tidemill.core.limits import QUEUES_PER_TOPIC_MAX
from tidemill.core.model import SEQ_MAX, Handle
from tidemill.log.arrays import I64

_FIELDS = [field.name for field in fields(Wanted)]
_PARTS = "parts"
_CONDITIONS_MAX = 64


def command_of(descriptor: Any) -> dict[str, Any]:
    """The JSON object of a command descriptor, or of a path what it stands for."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return _object(descriptor.command)
    path = [part.decode("utf-8", "replace") for part in descriptor.path]
    return dict(zip(("table", "topic"), path, strict=False))


def put_topic_of(descriptor: Any) -> str | None:
    """The topic that a put names for all its rows; None: each row names its own."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        said = _object(descriptor.command)
        if unknown := sorted(set(said) - {"topic"}):
            raise MalformedRequestError(
                f"unknown fields {unknown} in the command of a put; it may name a topic"
            )
        return _text(said, "topic")
    path = [part.decode("utf-8", "replace") for part in descriptor.path]
    if len(path) > 1:
        raise MalformedRequestError(
            "the path of a put is one topic, or empty where a column names the topics"
        )
    return path[0] if path else None


def wanted_of(said: dict[str, Any]) -> Wanted:
    """The rows and columns that a ticket requests."""
    if unknown := sorted(set(said) - set(_FIELDS)):
        raise MalformedRequestError(f"unknown fields {unknown}; known are {sorted(_FIELDS)}")
    columns, queues = said.get("columns", []), said.get("queues", [])
    if not isinstance(columns, list) or not all(type(name) is str for name in columns):
        raise MalformedRequestError("columns must be a list of names")
    if not isinstance(queues, list) or not all(_is_queue(queue) for queue in queues):
        raise MalformedRequestError("queues must be a list of queues' numbers")
    wanted = Wanted(
        _text(said, "table") or "",
        _text(said, "topic"),
        _text(said, "key"),
        _number(said, "from_ms", 0),
        _number(said, "to_ms", FOREVER_MS),
        tuple(dict.fromkeys(columns)),
        _places(said, "offsets"),
        _places(said, "until"),
        tuple(queues),
        _number(said, "from_seq", 0),
        _number(said, "to_seq", FOREVER_MS),
        _conditions(said),
    )
    wanted.schema()
    return wanted


def parts_of(said: dict[str, Any]) -> int:
    """Into how many parts the command of a flight info wants the table cut; taken out of the command."""
    count = said.pop(_PARTS, 1)
    if type(count) is not int or not 1 <= count <= PARTS_MAX:
        raise MalformedRequestError(f"parts must be a whole number from 1 to {PARTS_MAX}")
    return int(count)


def ticket_content(wanted: Wanted) -> bytes:
    """The ticket that requests these rows and columns."""
    plain = Wanted(wanted.table)
    names = [name for name in _FIELDS if name not in ("table", "where")]
    said: dict[str, Any] = {"table": wanted.table}
    said |= {name: value for name in names if (value := getattr(wanted, name)) != getattr(plain, name)}
    if wanted.where:
        said["where"] = [[c.column, c.operator, c.value] for c in wanted.where]
    return json.dumps(said).encode()


def parse_ticket(ticket: bytes) -> Wanted:
    return wanted_of(_object(ticket))


def cancel_columns(
    batch: pa.RecordBatch, broker_id: str, topic: str | None
) -> tuple[pa.Array, pa.Array, I64]:
    """Topic, id and seq of each row of a cancel. A handle of another broker has no topic here.

    The batch must have been checked (`batch_bounds.py`).
    """
    names = set(batch.schema.names)
    if len(names) < batch.num_columns:
        raise RequestError(f"a column is there more than once: {batch.schema.names}; name each once")
    if "handle" in names:
        handles = [Handle.parse(text) for text in _cells(batch, "handle", pa.string(), "").to_pylist()]
        topics = [handle.topic if handle.broker == broker_id else "" for handle in handles]
        seqs = np.array([handle.seq for handle in handles], np.int64)
        return pa.array(topics, pa.string()), pa.array([h.id for h in handles], pa.string()), seqs
    if not {"id", "seq"} <= names or ("topic" not in names and topic is None):
        raise RequestError(
            "a cancel needs the column `handle`, or `id` and `seq` and a topic (a column, or in the command)"
        )
    ids = _cells(batch, "id", pa.string(), "")
    seqs = _cells(batch, "seq", pa.int64(), -1).to_numpy()
    if "topic" in names:
        texts = _cells(batch, "topic", pa.string(), "")
    else:
        check_topic_name(str(topic), is_internal=True)  # before it is written into every row
        texts = pa.repeat(pa.scalar(topic), batch.num_rows)
    if "broker" in names:
        texts = pc.if_else(pc.equal(_cells(batch, "broker", pa.string(), ""), broker_id), texts, "")
    return texts, ids, np.clip(seqs, -1, SEQ_MAX)


def request_id_of(metadata: Any) -> str | None:
    """The request id in the metadata of a batch; None where there is none."""
    content = b"" if metadata is None else bytes(metadata)
    return content.decode("latin-1") if content else None


def _cells(batch: pa.RecordBatch, name: str, kind: pa.DataType, missing: object) -> pa.Array:
    """A column of a cancel as what it must be."""
    try:
        return batch.column(name).cast(kind).fill_null(missing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RequestError(
            f"the columns of a cancel are texts, and whole numbers in `seq`; in `{name}`: {error}"
        ) from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise MalformedRequestError("a ticket or command is a JSON object; see docs/flight.md")
    return said


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and type(value) is not str:
        raise MalformedRequestError(f"{name} must be a text")
    return value


def _number(said: dict[str, Any], name: str, default: int) -> int:
    value = said.get(name, default)
    if value is None:
        return default
    if type(value) is not int or not -FOREVER_MS <= value <= FOREVER_MS:
        raise MalformedRequestError(f"{name} must be a whole number")
    return int(value)


def _places(said: dict[str, Any], name: str) -> dict[int, int]:
    """Offsets by queue. JSON has them by text."""
    places = said.get(name, {})
    is_right = isinstance(places, dict) and all(
        queue.isdecimal() and _is_queue(int(queue)) and type(at) is int and 0 <= at <= FOREVER_MS
        for queue, at in places.items()
    )
    if not is_right:
        raise MalformedRequestError(f"{name} must map each queue's number to an offset")
    return {int(queue): at for queue, at in places.items()}


def _is_queue(queue: Any) -> bool:
    return type(queue) is int and 0 <= queue < QUEUES_PER_TOPIC_MAX


def _conditions(said: dict[str, Any]) -> tuple[Condition, ...]:
    given = said.get("where", [])
    is_right = isinstance(given, list) and all(
        isinstance(row, list) and len(row) in (2, 3) and all(type(text) is str for text in row[:2])
        for row in given
    )
    if not is_right or len(given) > _CONDITIONS_MAX:
        raise MalformedRequestError(
            f'where is a list of at most {_CONDITIONS_MAX} conditions like ["lateness_ms", ">", 50]'
        )
    return tuple(Condition(*row) for row in given)
