"""What the measurements are made of: how much of it, the messages, and a broker to send them to.

Owns the sizes (`FULL`, `QUICK`) and the tables of 100-byte timed messages. Bodies are made once and shared,
so that making them is no part of any figure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.core.limits import HOUR_MS
from tidemill.log.arrays import I64

TOPIC = "bench"
BATCH_ROWS = 1 << 16
_BODY_BYTES = 100
_DUE_FROM_MS = HOUR_MS
_DUE_SPAN_MS = 39 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of each measurement."""

    bulk_count: int  # messages for send, absorb and cancel
    cancel_count: int
    burst_count: int
    rest_count: int  # of each kind, near and far
    pending_count: int  # for reopening, memory and index bytes
    few_count: int  # the small end of the memory measurement
    tail_count: int  # the last of the pending ones, sent just before the kill
    tidy_s: int  # how long the broker may tidy up; it returns memory every ten seconds


FULL = Scale(32 * BATCH_ROWS, 4 * BATCH_ROWS, 1_000_000, 300, 10_000_000, 10_000, 200_000, 22)
QUICK = Scale(2 * BATCH_ROWS, BATCH_ROWS // 4, 20_000, 40, 3 * BATCH_ROWS, 10_000, 10_000, 1)


def tables(count: int, now_ms: int) -> Iterator[pa.Table]:
    """`count` messages in tables of at most `BATCH_ROWS`, due one to forty hours from now, in no order."""
    bodies = _bodies(min(count, BATCH_ROWS))
    for start in range(0, count, BATCH_ROWS):
        rows = min(BATCH_ROWS, count - start)
        # A large odd stride walks over the whole span without repeating itself.
        strides = (np.arange(start, start + rows, dtype=np.int64) * 7_919_317) % _DUE_SPAN_MS
        yield table_due_at(now_ms + _DUE_FROM_MS + strides, bodies)


def table_due_at(deliver_at_ms: I64, bodies: pa.Array | None = None) -> pa.Table:
    """One message of 100 bytes for each due time."""
    bodies = _bodies(len(deliver_at_ms)) if bodies is None else bodies.slice(0, len(deliver_at_ms))
    return pa.table({"body": bodies, "deliver_at": pa.array(deliver_at_ms)})


def _bodies(count: int) -> pa.Array:
    ends = np.arange(count + 1, dtype=np.int32) * _BODY_BYTES
    content = os.urandom(count * _BODY_BYTES)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(content)])
