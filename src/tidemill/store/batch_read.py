"""Many messages read back at once, as Arrow columns: one look at each frame, however many of its rows.

Reads only. A message whose bytes were cut off with the head, or are damaged, comes back as nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.model import StoredMessage
from tidemill.log.arrays import I64, U64
from tidemill.store.formats.message_format import SCHEMA, Section, arrow_batch
from tidemill.store.message_store import MessageStore

_ROW_MASK = np.uint64(0xFFFF)


def columns_at(store: MessageStore, places: U64, names: Sequence[str]) -> list[pa.Array]:
    """The named columns of the message schema, for the message at each place."""
    wanted = pa.schema([SCHEMA.field(name).with_nullable(True) for name in names])
    order, groups = _by_frame(places)
    parts: list[pa.RecordBatch] = []
    gathered: list[StoredMessage] = []  # of sections in the row encoding, which are small and many

    def flush() -> None:
        if gathered:
            parts.append(_selected(arrow_batch(gathered, [-1] * len(gathered)), wanted))
            gathered.clear()

    for frame_offset, rows in groups:
        section = _live_section(store, frame_offset)
        if section is not None and not section.is_arrow:
            gathered.extend(map(section.message, rows.tolist()))
            continue
        flush()
        if section is None:
            nulls = [pa.nulls(len(rows), field.type) for field in wanted]
            parts.append(pa.RecordBatch.from_arrays(nulls, schema=wanted))
        else:
            parts.append(_selected(section.to_arrow().select(names).take(pa.array(rows)), wanted))
    flush()
    if not parts:
        return [pa.array([], field.type) for field in wanted]
    columns = [pa.concat_arrays([part.column(at) for part in parts]) for at in range(len(names))]
    if order is None:
        return columns
    back = pa.array(np.argsort(order))
    return [column.take(back) for column in columns]


def sizes_at(store: MessageStore, places: U64) -> I64:
    """How many bytes the body at each place has; 0 where it is gone or damaged."""
    order, groups = _by_frame(places)
    sizes: list[I64] = []
    for frame_offset, rows in groups:
        section = _live_section(store, frame_offset)
        sizes.append(np.zeros(len(rows), np.int64) if section is None else section.body_sizes(rows))
    joined: Any = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    if order is None:
        return joined  # type: ignore[no-any-return]
    found = np.empty(len(places), np.int64)
    found[order] = joined
    return found


def _by_frame(places: U64) -> tuple[I64 | None, Iterator[tuple[int, I64]]]:
    """The order that brings rows of a frame together (None: they are), and each frame with its rows."""
    frames = places >> np.uint64(16)
    order = None
    if len(frames) and (frames[1:] < frames[:-1]).any():
        order = np.argsort(frames, kind="stable")
        places, frames = places[order], frames[order]
    starts = np.flatnonzero(np.r_[True, frames[1:] != frames[:-1]]) if len(frames) else np.empty(0, np.int64)
    ends = np.r_[starts[1:], len(frames)]
    rows = (places & _ROW_MASK).astype(np.int64)
    bounds = zip(frames[starts].tolist(), starts.tolist(), ends.tolist(), strict=False)
    return order, ((frame, rows[start:end]) for frame, start, end in bounds)


def _live_section(store: MessageStore, frame_offset: int) -> Section | None:
    with store.read():  # the head is cut under this lock
        is_gone = frame_offset < store.log.head or frame_offset == 0
        return None if is_gone else store.readable_section(frame_offset)


def _selected(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(name) for name in wanted.names], schema=wanted)
