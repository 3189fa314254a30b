"""What a Flight call asks for: the JSON of a ticket or command, and the columns of a cancel, checked.

    {"table": "pending" | "history" | "messages", "topic": "orders", "key": "order-17",
     "from_ms": 0, "to_ms": 1900000000000, "columns": ["id", "deliver_at"], "offsets": {"0": 1200}}

A descriptor may also be a path: `pending`, `history`, or `messages` and a topic. Nothing here touches the
broker.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from tidemill.broker.table_views import FOREVER_MS, Wanted
from tidemill.core.errors import MalformedRequest, RequestError
from tidemill.core.limits import QUEUES_PER_TOPIC_MAX
from tidemill.core.model import SEQ_MAX, Handle
from tidemill.log.arrays import I64

_FIELDS = {"table", "topic", "key", "from_ms", "to_ms", "columns", "offsets"}


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
            raise MalformedRequest(f"unknown fields {unknown} in the command of a put; it may name a topic")
        return _text(said, "topic")
    path = [part.decode("utf-8", "replace") for part in descriptor.path]
    if len(path) > 1:
        raise MalformedRequest("the path of a put is one topic, or nothing where a column names the topics")
    return path[0] if path else None


def wanted_of(said: dict[str, Any]) -> Wanted:
    """The rows and columns that a ticket asks for."""
    if unknown := sorted(set(said) - _FIELDS):
        raise MalformedRequest(f"unknown fields {unknown}; known are {sorted(_FIELDS)}")
    columns, offsets = said.get("columns", []), said.get("offsets", {})
    if not isinstance(columns, list) or not all(type(name) is str for name in columns):
        raise MalformedRequest("columns must be a list of names")
    if not isinstance(offsets, dict) or not all(_is_place(queue, at) for queue, at in offsets.items()):
        raise MalformedRequest("offsets must map each queue's number to an offset")
    wanted = Wanted(
        _text(said, "table") or "",
        _text(said, "topic"),
        _text(said, "key"),
        _moment(said, "from_ms", 0),
        _moment(said, "to_ms", FOREVER_MS),
        tuple(dict.fromkeys(columns)),
        {int(queue): at for queue, at in offsets.items()},
    )
    wanted.schema()
    return wanted


def ticket_content(wanted: Wanted) -> bytes:
    """The ticket that asks for what is wanted."""
    said: dict[str, Any] = {"table": wanted.table, "from_ms": wanted.from_ms, "to_ms": wanted.to_ms}
    said |= {name: value for name in ("topic", "key") if (value := getattr(wanted, name)) is not None}
    said |= {"columns": list(wanted.columns)} if wanted.columns else {}
    said |= {"offsets": wanted.offsets} if wanted.offsets else {}
    return json.dumps(said).encode()


def parse_ticket(ticket: bytes) -> Wanted:
    return wanted_of(_object(ticket))


def cancel_columns(
    batch: pa.RecordBatch, broker_id: str, topic: str | None
) -> tuple[pa.Array, pa.Array, I64]:
    """Topic, id and seq of each row of a cancel. A handle of another broker has no topic here."""
    names = set(batch.schema.names)
    if "handle" in names:
        handles = [Handle.parse(text or "") for text in batch.column("handle").to_pylist()]
        topics = [handle.topic if handle.broker == broker_id else "" for handle in handles]
        seqs = np.array([handle.seq for handle in handles], np.int64)
        return pa.array(topics, pa.string()), pa.array([h.id for h in handles], pa.string()), seqs
    if not {"id", "seq"} <= names or ("topic" not in names and topic is None):
        raise RequestError(
            "a cancel needs the column `handle`, or `id` and `seq` and a topic (a column, or in the command)"
        )
    try:
        ids = batch.column("id").cast(pa.string()).fill_null("")
        seqs = batch.column("seq").cast(pa.int64()).fill_null(-1).to_numpy()
        texts = batch.column("topic").cast(pa.string()).fill_null("") if "topic" in names else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RequestError(
            f"the columns of a cancel are texts, and whole numbers in `seq`: {error}"
        ) from None
    if texts is None:
        texts = pa.repeat(pa.scalar(topic), batch.num_rows)
    if "broker" in names:
        texts = pc.if_else(pc.fill_null(pc.equal(batch.column("broker"), broker_id), False), texts, "")
    return texts, ids, np.clip(seqs, -1, SEQ_MAX)


def _object(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise MalformedRequest("a ticket or command is a JSON object; see docs/flight.md")
    return said


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and type(value) is not str:
        raise MalformedRequest(f"{name} must be a text")
    return value


def _moment(said: dict[str, Any], name: str, default: int) -> int:
    value = said.get(name, default)
    if value is None:
        return default
    if type(value) is not int or not -FOREVER_MS <= value <= FOREVER_MS:
        raise MalformedRequest(f"{name} must be a whole number of milliseconds")
    return int(value)


def _is_place(queue: Any, offset: Any) -> bool:
    is_queue = isinstance(queue, str) and queue.isdecimal() and int(queue) < QUEUES_PER_TOPIC_MAX
    return is_queue and type(offset) is int and 0 <= offset < FOREVER_MS
