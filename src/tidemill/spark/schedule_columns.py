"""The columns of a DataFrame that is scheduled: checked once, then converted to the broker's, batch by batch.

    topic, key, tag string    body string or binary    deliver_at timestamp, or bigint: Unix ms
    message_group string      properties map<string,string>, or string: JSON objects
    id string                 delay bigint: ms, string: 90s, or interval    level int

Owns each message's identity: its id. With `once`, a row's id is made of its key and its time, so the same
row is the same message, however often a task or a whole job is run. Where the time is a delay, which means
another moment each time, the id also contains the run. Whole columns only; no loop per message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidemill.core.durations import parse_duration_ms
from tidemill.core.errors import RequestError
from tidemill.core.limits import ID_CHARS_MAX

_WHOLE = (LongType, IntegerType, ShortType, ByteType)
_KINDS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "body": (StringType, BinaryType),
    "deliver_at": (TimestampType, *_WHOLE),
    "delay": (StringType, DayTimeIntervalType, *_WHOLE),
    "level": _WHOLE,
    "key": (StringType,),
    "tag": (StringType,),
    "properties": (StringType, MapType),
    "message_group": (StringType,),
    "id": (StringType,),
}
_HINTS = {
    "deliver_at": "a timestamp, or whole numbers: Unix milliseconds",
    "delay": "whole numbers: milliseconds, or texts like 90s, or an interval",
    "properties": "a map of texts, or texts: JSON objects",
    "body": "texts or bytes",
}
_TIMES = ("deliver_at", "delay", "level")
# What JSON must not hold as it is; the other control characters are rare and go one by one.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL = r"[\x00-\x1f]"


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """The options of a write. Picklable."""

    topic: str | None = None  # None: from a column
    is_once: bool = True
    job: str = ""  # part of every id: another job's rows are other messages
    jitter_ms: int = 0  # of every row; drawn of its id, so a task that is repeated draws the same


def check_schedule(schema: StructType, plan: SchedulePlan) -> None:
    """`RequestError` unless rows with this schema can be scheduled. Before anything runs."""
    names = set(schema.fieldNames())
    if unknown := sorted(names - set(_KINDS)):
        raise RequestError(f"unknown columns {unknown}; a message is made of {', '.join(_KINDS)}")
    for field in schema.fields:
        if not isinstance(field.dataType, _KINDS[field.name]) or not _is_text_map(field.dataType):
            raise RequestError(
                f"column {field.name!r} is {field.dataType.simpleString()}; it must hold "
                f"{_HINTS.get(field.name, 'whole numbers' if field.name == 'level' else 'texts')}"
            )
    if "body" not in names:
        raise RequestError("there is no column `body`, the content of the message")
    if ("topic" in names) == (plan.topic is not None):
        raise RequestError("name the topic either by the option `topic` or by a column `topic`")
    if len(times := [name for name in _TIMES if name in names]) > 1:
        raise RequestError(f"give only one of the columns {' and '.join(times)}")
    if plan.jitter_ms and not names & {"deliver_at", "delay"}:
        raise RequestError("option jitter needs a column `deliver_at` or `delay`: it moves that time later")
    if plan.jitter_ms and "message_group" in names:
        raise RequestError(
            "option jitter does not go with a column `message_group`, whose rows keep their order"
        )
    if plan.is_once and not names & {"key", "id"}:
        raise RequestError(
            "there is no column `key`, by which a row that comes again is known (a task that Spark repeats, "
            "a job that is run again); add one, or an `id`, or set option once=false"
        )


def message_table(table: pa.Table, plan: SchedulePlan, run: str) -> pa.Table:
    """A table as the Flight endpoint takes it. `run` names this run of a job, its repeats included."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    if table.num_rows and columns["body"].null_count:
        raise RequestError("a body is null; use an empty one")
    if "properties" in columns:
        columns["properties"] = _properties(columns["properties"])
    if "delay" in columns:
        columns["delay_ms"] = _delays(columns.pop("delay"))
    if plan.is_once:
        columns["id"] = _ids(columns, plan, run)
        columns["once"] = pa.repeat(pa.scalar(True), table.num_rows)
    if plan.jitter_ms:
        columns["jitter_ms"] = pa.repeat(pa.scalar(plan.jitter_ms, pa.int64()), table.num_rows)
    return pa.table(columns)


# -- identity -------------------------------------------------------------------------------------


def _ids(columns: dict[str, pa.Array], plan: SchedulePlan, run: str) -> pa.Array:
    """Given ids, else `key@time`, with the job or the run before it where one is needed."""
    count = len(columns["body"])
    given = columns.get("id", pa.nulls(count, pa.string()))
    keys = columns.get("key", pa.nulls(count, pa.string()))
    has_id = pc.fill_null(pc.not_equal(given, ""), False)
    has_key = pc.fill_null(pc.not_equal(keys, ""), False)
    if not pc.all(pc.or_(has_id, has_key), min_count=0).as_py():
        raise RequestError(
            "a row has neither key nor id, so a repeat could not be recognised; "
            "give every row a key, or set option once=false"
        )
    text = pa.string()
    if "deliver_at" in columns:
        times = _moments(columns["deliver_at"])
        is_absolute = times.is_valid()
        times = times.cast(text)
    else:
        times = next((columns[name].cast(text) for name in ("delay_ms", "level") if name in columns), None)
        times = pa.nulls(count, text) if times is None else times
        is_absolute = pa.repeat(pa.scalar(False), count)
    scope = pa.scalar(f"{plan.job}/" if plan.job else "")
    run_scope = pa.scalar(f"{plan.job or run}/")
    scopes = pc.if_else(is_absolute, scope, run_scope)
    made = pc.binary_join_element_wise(
        scopes, keys.fill_null(""), "@", times.fill_null(""), "", null_handling="replace"
    )
    return pc.if_else(has_id, given, _shortened(made))


def _moments(column: pa.Array) -> pa.Array:
    """Unix milliseconds as the broker will take them: a part of one counts whole."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    us = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    # Divided towards minus infinity, as Arrow's own division is not.
    return pc.cast(pc.ceil(pc.divide(us.cast(pa.float64()), 1000.0)), pa.int64())


def _shortened(ids: pa.Array) -> pa.Array:
    """Ids that are too long, of long keys, by their hash; there are few, if any."""
    is_long = pc.greater(pc.utf8_length(ids), ID_CHARS_MAX)
    if not pc.any(is_long, min_count=0).as_py():
        return ids
    return _mapped(ids, is_long, lambda text: hashlib.sha256(text.encode()).hexdigest())


# -- values ---------------------------------------------------------------------------------------


def _delays(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        encoded = column.dictionary_encode()
        spans = [parse_duration_ms(text) for text in encoded.dictionary.to_pylist()]
        return pa.array(spans, pa.int64()).take(encoded.indices)
    if pa.types.is_duration(column.type):
        us = column.cast(pa.duration("us")).cast(pa.int64())
        return pc.cast(pc.ceil(pc.divide(us.cast(pa.float64()), 1000.0)), pa.int64())
    return column.cast(pa.int64())


def _properties(column: pa.Array) -> pa.Array:
    """JSON objects of maps, made of whole columns of names and values."""
    if not pa.types.is_map(column.type):
        return column
    lists = column.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    names, values = lists.flatten().flatten()
    if values.null_count:
        raise RequestError("a property is null; leave it out of the map, or make it an empty text")
    items = pc.binary_join_element_wise('"', _escaped(names), '":"', _escaped(values), '"', "")
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    inner = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    objects = pc.binary_join_element_wise("{", inner, "}", "")
    return pc.if_else(lists.is_valid(), objects, pa.scalar("", pa.string()))


def _escaped(texts: pa.Array) -> pa.Array:
    for raw, escaped in _ESCAPES:
        texts = pc.replace_substring(texts, raw, escaped)
    has_control = pc.match_substring_regex(texts, _CONTROL)
    if not pc.any(has_control, min_count=0).as_py():
        return texts
    return _mapped(texts, has_control, _without_controls)


def _without_controls(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if ord(c) < 0x20 else c for c in text)


def _mapped(texts: pa.Array, is_meant: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """The texts with the few that are meant changed one by one."""
    changed = [change(text) for text in texts.filter(is_meant).to_pylist()]
    return pc.replace_with_mask(texts, is_meant, pa.array(changed, texts.type))


def _is_text_map(kind: Any) -> bool:
    """True for whatever is no map, and for maps of texts."""
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
