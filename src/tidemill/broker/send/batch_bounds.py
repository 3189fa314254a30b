"""What a batch from outside may be, before a single value of it is read.

Arrow hands over what came as it came: offsets that point anywhere, a hundred million nulls in no bytes, one
text that a dictionary, or a view, repeats in every row. Reading the first ends the process; casting the rest
takes memory that is not accounted for. So a batch is measured here first: its rows, then whether all in it is
what it says, then the bytes of its values once each of them is written out.

Owns the bounds of a frame that is made of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import BodyTooLargeError, RequestError
from tidemill.core.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX
from tidemill.log.arrays import I64

_FRAME_BYTES = FRAME_BYTES_MAX // 4
# What a batch that must be stored as one frame may hold: the rest of the frame is for columns we add.
WHOLE_BYTES_MAX = 3 * _FRAME_BYTES
_OFFSET_BYTES = 8
_WIDEST_BYTES = 32  # of a value whose type has one width
_VIEW_NUMBERS = 4  # of 32 bits in a view; the first is its value's length
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


def check_bytes(batch: pa.RecordBatch) -> None:
    """`RequestError` unless a batch reads back: offsets within their data, texts that are UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise RequestError(f"the table is not valid Arrow data: {error}; fix it at its source") from None


def check_whole(batch: pa.RecordBatch) -> int:
    """The bytes of a batch; `BodyTooLargeError` unless one frame can hold it, and so all of it or nothing."""
    if batch.num_rows > FRAME_ROWS_MAX:
        raise BodyTooLargeError(f"a batch has {batch.num_rows} rows; send at most {FRAME_ROWS_MAX} in each")
    check_bytes(batch)
    size = max(int(batch.nbytes), decoded_bytes(batch))
    if size > WHOLE_BYTES_MAX:
        raise BodyTooLargeError(
            f"a batch has {size} bytes, every value written out; send at most {WHOLE_BYTES_MAX} in each"
        )
    return size


def framed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch that fit a frame, by rows and by bytes. The batch must have been checked."""
    size, rows_max = decoded_bytes(batch), FRAME_ROWS_MAX
    if size > _FRAME_BYTES:
        rows_max = max(1, min(rows_max, batch.num_rows * _FRAME_BYTES // size))
    for start in range(0, batch.num_rows, rows_max):
        part = batch.slice(start, rows_max)
        if part.num_rows > 1 and decoded_bytes(part) > WHOLE_BYTES_MAX:
            half = part.num_rows // 2
            yield from framed(part.slice(0, half))
            yield from framed(part.slice(half))
        else:
            yield part


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """What a batch takes once every value is written out in its row. The batch must have been checked."""
    return sum(_decoded(column) for column in batch.columns)


def _decoded(column: pa.Array) -> int:
    if isinstance(column.type, pa.BaseExtensionType):
        return _decoded(column.storage)
    if _is_short(column.type):
        return int(_lengths(column).sum()) + len(column) * _OFFSET_BYTES
    return int(column.nbytes)


def _is_short(kind: pa.DataType) -> bool:
    """Whether values of the type may take less memory than they have bytes."""
    return bool(pa.types.is_dictionary(kind) or pa.types.is_null(kind) or _is_view(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _lengths(column: pa.Array) -> I64:
    """The bytes of each value; 0 of a null."""
    kind, count = column.type, len(column)
    if isinstance(kind, pa.BaseExtensionType):
        return _lengths(column.storage)
    if column.null_count == count:
        return np.zeros(count, np.int64)
    lengths: I64
    if pa.types.is_dictionary(kind):
        lengths = _lengths(column.dictionary)[column.indices.fill_null(0).to_numpy().astype(np.int64)]
    elif _is_view(kind):
        numbers = np.frombuffer(column.buffers()[1], np.int32, (column.offset + count) * _VIEW_NUMBERS)
        lengths = numbers[column.offset * _VIEW_NUMBERS :: _VIEW_NUMBERS].astype(np.int64)
    elif any(is_so(kind) for is_so in _TEXTS):
        lengths = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    else:
        lengths = np.full(count, _WIDEST_BYTES)
    if column.null_count:  # a null has no length, whatever is written in its place
        lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return lengths
