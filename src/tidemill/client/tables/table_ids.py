"""Ids for the rows of a table without ids, so that a batch may be sent again without being stored twice.

Pure, over Arrow columns; without a loop per row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from tidemill.client.tables.table_rows import as_texts
from tidemill.core.errors import IllegalIdError, RequestError

_HEX = b"0123456789ABCDEF"
_NOT_ONCE = (None, "", "no", "false")  # of a column `once`


def with_ids(table: Any) -> Any:
    """The table with an id in every row; but for those that are sent once by their ids, and have none.

    They are refused by the broker; with a generated id, new each time, they would be stored again.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    made = pa.chunked_array([_made_ids(table.num_rows)])
    if "once" in table.column_names:
        made = pc.if_else(_is_once_without_key(table), pa.scalar(None, pa.string()), made)
    if "id" not in table.column_names:
        return table.append_column("id", made)
    given = as_texts(table.column("id"))
    if given.type != pa.string():
        raise RequestError(f"column id must hold text; it is of type {given.type}")
    table = table.set_column(table.column_names.index("id"), "id", given)
    if not given.null_count:
        return table
    return table.set_column(table.column_names.index("id"), "id", pc.coalesce(given, made))


def until_empty_id(batches: Sequence[Any]) -> list[Any]:
    """The batches before the first with an empty id; raises if that is the first of all.

    The broker would make an id for the row, new each time.
    """
    sound = list(takewhile(lambda batch: not _has_empty_id(batch), batches))
    if batches and not sound:
        raise IllegalIdError("an id is empty; use 1 to 128 characters without blanks, or null for a made one")
    return sound


def _has_empty_id(batch: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(batch.column("id"), "")).as_py())


def _is_once_without_key(table: Any) -> Any:
    """Which rows of a table with a column `once` are sent once, or want to be, and have no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    once = as_texts(table.column("once"))
    if once.type != pa.string():
        return pa.scalar(False)  # the broker reports what is wrong with it
    is_once = pc.invert(pc.is_in(pc.utf8_lower(once), value_set=pa.array(_NOT_ONCE, pa.string())))
    keys = as_texts(table.column("key")) if "key" in table.column_names else None
    if keys is None or keys.type != pa.string():
        return is_once
    return pc.and_(is_once, pc.equal(pc.fill_null(keys, ""), ""))


def _made_ids(count: int) -> Any:
    """Ids of a random beginning and the row's number, made as one piece of memory."""
    import numpy as np
    import pyarrow as pa

    octets = np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 4)
    hexes = np.frombuffer(_HEX, np.uint8)
    digits = np.empty((count, 24), np.uint8)
    digits[:, :16] = np.frombuffer(os.urandom(8).hex().upper().encode(), np.uint8)
    digits[:, 16::2], digits[:, 17::2] = hexes[octets >> 4], hexes[octets & 15]
    offsets = pa.py_buffer(np.arange(0, 24 * count + 1, 24, dtype=np.int32))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(digits))
