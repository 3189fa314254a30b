"""Admission of tables: from an Arrow batch as it came to a `SendBatch`, without a loop over its rows.

Columns (all but `body` optional, unless `topic` is given for all):

    topic string       body binary or string     deliver_at timestamp or int64 ms   delay_ms duration
                                                 (or deliver_at_ms)                 or int64
    level int          id string                 key string                         once bool or 'keep'
    tag string         message_group string      properties string (JSON object)    jitter_ms as delay_ms

Pure but for the settings and the time it is given. Every check of a single send is made here too, on whole
columns; one value that fails is checked alone, for its error. `replace` belongs to single sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.send.admission import (
    check_delay,
    check_id,
    check_keys,
    check_message_group,
    check_named_bytes,
    check_not_negative,
    check_properties,
    check_tag,
    check_topic_name,
    level_columns,
)
from tidemill.broker.send.batch import ONCE_KEEP, ONCE_NO, SendBatch
from tidemill.broker.send.jitter import jitter_of_rows
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import (
    BodyTooLargeError,
    IllegalIdError,
    IllegalKeyError,
    IllegalPropertyError,
    RequestError,
)
from tidemill.core.limits import ID_CHARS_MAX, PROPERTIES_BYTES_MAX
from tidemill.core.model import NO_TIME_MS
from tidemill.core.number_columns import whole_numbers
from tidemill.core.table_columns import TIME_COLUMNS, check_names
from tidemill.log.arrays import I64, Flags
from tidemill.store.formats.arrow import empty_texts
from tidemill.store.formats.texts import slices_of

_ONCES = {"": False, "no": False, "false": False, "keep": True, "true": True}


def check_columns(names: Sequence[str], topic_name: str | None) -> None:
    """`RequestError` unless a table with these columns can be sent."""
    check_names(names, topic_name)
    if topic_name is not None:
        check_topic_name(topic_name)  # before it is written into every row
    if "topic" in names and topic_name is not None:
        raise RequestError(
            f"the topic is given twice, as {topic_name!r} and as the column `topic`; leave one of them out"
        )
    if len(given := [name for name in TIME_COLUMNS if name in names]) > 1:
        raise RequestError(f"give only one of the columns {' and '.join(given)}")


def admit_table(
    table: pa.RecordBatch, topic_name: str | None, settings: BrokerSettings, now_ms: int, first_row: int
) -> SendBatch:
    """Check a batch of a table, of which `first_row` is the first; the first thing wrong is raised."""
    due, levels, notes = times_of(table, settings, now_ms, first_row)
    groups = checked_texts(texts(table, "message_group"), check_message_group)
    jitter = jitter_of_rows(table, due, levels, groups, settings, now_ms, first_row)
    keys = checked_words(texts(table, "key"), PROPERTIES_BYTES_MAX, check_key, IllegalKeyError)
    tags = checked_texts(texts(table, "tag"), check_tag)
    properties = checked_texts(texts(table, "properties"), check_property_text)
    check_named(tags, keys, properties)
    ids = checked_words(texts(table, "id"), ID_CHARS_MAX, check_id, IllegalIdError)
    is_once = onces_of(table, keys)
    names, which = [topic_name or ""], None
    if topic_name is None:
        encoded = texts(table, "topic").dictionary_encode()
        names, which = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
    id_lengths = slices_of(ids)[2]
    return SendBatch(
        table.num_rows,
        now_ms,
        names,
        which,
        due,
        np.flatnonzero(due != NO_TIME_MS),
        bodies_of(table, settings),
        ids if id_lengths.any() else None,
        lacks_ids=not id_lengths.all(),
        tags=_given(tags),
        keys=_given(keys),
        groups=_given(groups),
        properties=_given(properties),
        levels=levels if levels.any() else 0,
        once=np.where(is_once, ONCE_KEEP, ONCE_NO) if is_once.any() else None,
        jitter_ms=jitter,
        notes=notes,
    )


def _given(column: pa.Array) -> pa.Array | None:
    """The column; None if no row has a text."""
    return column if slices_of(column)[2].any() else None


# -- times ----------------------------------------------------------------------------------------


def times_of(
    batch: pa.RecordBatch, settings: BrokerSettings, now_ms: int, first_row: int
) -> tuple[I64, I64, list[str] | None]:
    """When each row falls due (-1: not timed), its level (0: none), and notes where another level is used.

    `first_row` is the number of the batch's first row in the whole table, for what is said about one.
    """
    due = _due_times(batch, settings, now_ms, first_row)
    if "level" not in batch.schema.names:
        return due, np.zeros(batch.num_rows, np.int64), None
    asked = whole_numbers("level", batch.column("level")).fill_null(0).to_numpy()
    own, used, notes = level_columns(asked, settings, now_ms)
    if (due[used > 0] != NO_TIME_MS).any():
        raise RequestError("give only one of a delivery time, a delay and a level")
    return np.where(used > 0, own, due), used, notes


def _due_times(batch: pa.RecordBatch, settings: BrokerSettings, now_ms: int, first_row: int) -> I64:
    name = next((name for name in TIME_COLUMNS if name in batch.schema.names), None)
    if name is None:
        return np.full(batch.num_rows, NO_TIME_MS)
    column, start_ms = whole_numbers(name, batch.column(name)), now_ms if name == "delay_ms" else 0
    is_timed = column.is_valid().to_numpy(zero_copy_only=False)
    due = column.fill_null(0).to_numpy()
    if len(due):
        if name == "delay_ms":
            least = int(due.argmin())
            check_not_negative(int(due[least]), where=f"row {first_row + least}: ")
        worst = int(due.argmax())
        check_delay(int(due[worst]) + start_ms, settings, now_ms, where=f"row {first_row + worst}: ")
    return np.where(is_timed, np.maximum(due + start_ms, 0), NO_TIME_MS)


# -- texts ----------------------------------------------------------------------------------------


def texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A text column without nulls; empty texts where it is missing."""
    if name not in batch.schema.names:
        return empty_texts(batch.num_rows)
    column = _as(batch.column(name), name, pa.string())
    return column.fill_null("") if column.null_count else column


def _as(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    """The column as text, or as bytes."""
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        wanted = "text" if kind == pa.string() else "bytes or text"
        raise RequestError(
            f"column {name} must hold {wanted}; it is of type {column.type}: {error}"
        ) from None


def checked_texts(column: pa.Array, check: Callable[[str], None]) -> pa.Array:
    """The column, after each distinct text in it passed the check."""
    if int(slices_of(column)[2].max(initial=0)):
        for text in column.unique().to_pylist():
            if text:
                check(text)
    return column


def checked_words(
    column: pa.Array, chars_max: int, check: Callable[[str], None], fault: type[RequestError]
) -> pa.Array:
    """Ids and keys are many and distinct, so they are checked as a column; one that fails, for its error."""
    if not int(slices_of(column)[2].max(initial=0)):
        return column
    bad = pc.match_substring_regex(column, r"[\s\x00-\x1f\x7f]")
    too_long = pc.greater(pc.utf8_length(column), chars_max)
    worst = pc.index(pc.or_(bad, too_long), True).as_py()
    if worst >= 0:
        check(column[worst].as_py())
        raise fault(f"{column[worst].as_py()!r} is not allowed")
    # What the regular expression takes for no blank but Unicode does can only be in text beyond ASCII.
    if not pc.all(pc.string_is_ascii(column)).as_py():
        checked_texts(column.filter(pc.invert(pc.string_is_ascii(column))), check)
    return column


def check_key(key: str) -> None:
    check_keys((key,))
    check_named_bytes("", (key,), 0)


def check_named(tags: pa.Array, keys: pa.Array, properties: pa.Array) -> None:
    """`PropertiesTooLarge` if tag, key and properties of a row are too much together."""
    # The JSON of properties is never shorter than what it holds, so few rows need a second look.
    most = slices_of(tags)[2] + slices_of(keys)[2] + slices_of(properties)[2]
    for row in np.flatnonzero(most > PROPERTIES_BYTES_MAX).tolist():
        text = properties[row].as_py()
        named = check_properties(json.loads(text)) if text else 0
        check_named_bytes(tags[row].as_py(), (keys[row].as_py(),), named)


def onces_of(batch: pa.RecordBatch, keys: pa.Array) -> Flags:
    """Which rows are sent once by key: `once` is a column of booleans, or of texts (keep, no)."""
    if "once" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_)
    column = batch.column("once")
    if not pa.types.is_boolean(column.type):
        distinct = texts(batch, "once").unique().to_pylist()
        if unknown := sorted(text for text in distinct if text not in _ONCES):
            raise RequestError(
                f"once={unknown[0]!r} is not possible in a table; use true or 'keep' "
                "('replace' is for single sends)"
            )
        kept = pa.array([text for text in distinct if _ONCES[text]], pa.string())
        column = pc.is_in(texts(batch, "once"), value_set=kept)
    is_once: Flags = column.fill_null(False).to_numpy(zero_copy_only=False)
    has_name = (slices_of(keys)[2] > 0) | (slices_of(texts(batch, "id"))[2] > 0)
    if not has_name[is_once].all():
        raise IllegalKeyError("sending once needs a key, or an id; a row has neither")
    return is_once


def check_property_text(text: str) -> None:
    try:
        properties = json.loads(text)
    except (ValueError, RecursionError) as error:  # the second: arrays within arrays without end
        raise IllegalPropertyError(f"properties must be a JSON object of texts: {error}") from error
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise IllegalPropertyError("properties must be a JSON object whose values are texts")
    check_properties(properties)


def bodies_of(batch: pa.RecordBatch, settings: BrokerSettings) -> pa.Array:
    body = _as(batch.column("body"), "body", pa.binary())
    if body.null_count:  # not before: a dictionary counts its indexes, not its values
        raise RequestError("a body is null; use an empty one")
    longest = int(slices_of(body)[2].max(initial=0))
    if longest > settings.body_bytes_max:
        raise BodyTooLargeError(f"a body has {longest} bytes, the limit is {settings.body_bytes_max}")
    return body
