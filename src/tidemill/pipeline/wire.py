"""What travels through Spark: orders, with packed entries; no body ever.

From source to step, for each shard's partition, one or more rows. Each says what the shard shall do and
carries a piece of the entries for it:

    shard, epoch, seq, tick        the shard's target
    first_seq, end_seq             which seqs were looked at; the same in each row of a step
    seqs                           packed int64: the seqs of the entries in this piece
    entries                        packed entry rows (store/formats/entry_format.py), as many
    scan_s                         how long reading this piece took

Spark handles every row and column by itself, so thousands of entries in one packed value cost it what one
entry would: this is what makes a step of a million cheap.

From step to sink, one row for each shard: what the step did.

Pure: arrays in, Arrow batches out, and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np
import pyarrow as pa

from tidemill.log.arrays import Rows, joined, plain
from tidemill.store.formats.entry_format import ENTRY
from tidemill.timer.progress import seconds_name
from tidemill.timer.stages.admit import Batch, new_batch
from tidemill.timer.step_figures import STEP_STAGES

_ORDER_FIELDS = [
    ("shard", pa.int32()),
    ("epoch", pa.int64()),
    ("seq", pa.int64()),
    ("tick", pa.int64()),
    ("first_seq", pa.int64()),
    ("end_seq", pa.int64()),
]
ENTRY_SCHEMA = pa.schema(
    [*_ORDER_FIELDS, ("seqs", pa.binary()), ("entries", pa.binary()), ("scan_s", pa.float64())]
)
OUTCOME_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        *((name, pa.int64()) for name in ("epoch", "step", "seq", "tick", "absorbed", "handed_over")),
        *((name, pa.bool_()) for name in ("has_reached", "is_stale")),
        *((name, pa.int64()) for name in ("rolled", "already_due")),
        *((seconds_name(stage), pa.float64()) for stage in STEP_STAGES),
    ]
)
_SPARK_NAMES = {
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}
NO_ENTRIES = new_batch(np.empty(0, np.int64), np.empty(0, ENTRY))


def spark_columns(schema: pa.Schema) -> str:
    """The columns as Spark's own text declares them."""
    return ", ".join(f"{field.name} {_SPARK_NAMES[field.type]}" for field in schema)


@dataclass(frozen=True, slots=True)
class Order:
    """What one partition shall do: step its shard to a target; entries `[first_seq, end_seq)` come along."""

    shard: int
    epoch: int
    seq: int
    tick: int
    first_seq: int
    end_seq: int


def order_batch(order: Order, piece: Batch, scan_s: float = 0.0) -> pa.RecordBatch:
    """One row: the order and a piece of its entries, which took so long to read."""
    fields = zip(astuple(order), _ORDER_FIELDS, strict=True)
    arrays = [pa.array([value], kind) for value, (_, kind) in fields]
    packed = [_packed(piece.seqs), _packed(piece.entries), pa.array([scan_s], pa.float64())]
    return pa.RecordBatch.from_arrays([*arrays, *packed], schema=ENTRY_SCHEMA)


def _packed(rows: Rows) -> pa.Array:
    """A binary column of one value."""
    content = np.ascontiguousarray(plain(rows)).view(np.uint8)
    offsets = pa.py_buffer(np.array([0, len(content)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(content)])


def read_order(batches: Iterator[pa.RecordBatch]) -> tuple[Order, Batch, float] | None:
    """The order and all entries of one partition, and how long reading them took; None for a partition
    without rows."""
    order: Order | None = None
    seqs, entries, scan_s = [], [], 0.0
    for batch in batches:
        for row in range(batch.num_rows):
            if order is None:
                order = Order(*(batch.column(name)[row].as_py() for name, _ in _ORDER_FIELDS))
            seqs.append(np.frombuffer(batch.column("seqs")[row].as_buffer(), np.int64))
            entries.append(np.frombuffer(batch.column("entries")[row].as_buffer(), ENTRY))
            scan_s += batch.column("scan_s")[row].as_py()
    if order is None:
        return None
    return order, new_batch(np.concatenate(seqs), joined(entries)), scan_s
