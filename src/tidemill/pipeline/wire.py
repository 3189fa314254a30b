"""What travels through Spark: fixed-width columns only, no body ever.

From source to step, for each shard's partition: two opening rows that say what to do, then the entries to
absorb.

    seq             place          deliver_at_ms    size     topic_id
    -1              epoch          target tick      shard    0
    -2              target seq     first seq read   seqs     0
    a seq           its place      its due time     bytes    topic
    …

From step to sink, one row for each shard: what the step did.

Pure: arrays in, Arrow batches out, and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.log.arrays import I64
from tidemill.store.entry_format import ENTRY
from tidemill.timer.stages.admit import Batch

ENTRY_COLUMNS = "seq long, place long, deliver_at_ms long, size int, topic_id int"
OUTCOME_COLUMNS = (
    "shard int, epoch long, step long, seq long, tick long, absorbed long, handed_over long, "
    "has_reached boolean, is_stale boolean"
)
ENTRY_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("place", pa.int64()),
        ("deliver_at_ms", pa.int64()),
        ("size", pa.int32()),
        ("topic_id", pa.int32()),
    ]
)
OUTCOME_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("epoch", pa.int64()),
        ("step", pa.int64()),
        ("seq", pa.int64()),
        ("tick", pa.int64()),
        ("absorbed", pa.int64()),
        ("handed_over", pa.int64()),
        ("has_reached", pa.bool_()),
        ("is_stale", pa.bool_()),
    ]
)
_ROW_ORDER = -1
_ROW_RANGE = -2


@dataclass(frozen=True, slots=True)
class Order:
    """What one partition shall do: step its shard to a target; entries `[first_seq, end_seq)` come along."""

    shard: int
    epoch: int
    seq: int
    tick: int
    first_seq: int
    end_seq: int


def order_batch(order: Order) -> pa.RecordBatch:
    columns = [
        np.array([_ROW_ORDER, _ROW_RANGE], np.int64),
        np.array([order.epoch, order.seq], np.int64),
        np.array([order.tick, order.first_seq], np.int64),
        np.array([order.shard, order.end_seq - order.first_seq], np.int32),
        np.zeros(2, np.int32),
    ]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=ENTRY_SCHEMA)


def entry_batch(batch: Batch) -> pa.RecordBatch:
    entries = batch.entries
    columns = [
        batch.seqs,
        np.ascontiguousarray(entries["place"]).view(np.int64),
        np.ascontiguousarray(entries["deliver_at_ms"]),
        np.ascontiguousarray(entries["size"]).view(np.int32),
        np.ascontiguousarray(entries["topic_id"]).view(np.int32),
    ]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=ENTRY_SCHEMA)


def read_order(batches: Iterator[pa.RecordBatch]) -> tuple[Order, Batch] | None:
    """The order and all entries of one partition; None for a partition without rows."""
    arrived = [batch for batch in batches if batch.num_rows]
    if not arrived:
        return None
    table = {
        name: np.concatenate([batch.column(name).to_numpy() for batch in arrived])
        for name in ENTRY_SCHEMA.names
    }
    seqs: I64 = table["seq"]
    is_entry = seqs >= 0
    (order_at,), (range_at,) = np.flatnonzero(seqs == _ROW_ORDER), np.flatnonzero(seqs == _ROW_RANGE)
    first_seq = int(table["deliver_at_ms"][range_at])
    order = Order(
        shard=int(table["size"][order_at]),
        epoch=int(table["place"][order_at]),
        seq=int(table["place"][range_at]),
        tick=int(table["deliver_at_ms"][order_at]),
        first_seq=first_seq,
        end_seq=first_seq + int(table["size"][range_at]),
    )
    entries = np.zeros(int(is_entry.sum()), ENTRY)
    entries["place"] = table["place"][is_entry].view(np.uint64)
    entries["deliver_at_ms"] = table["deliver_at_ms"][is_entry]
    entries["size"] = table["size"][is_entry].view(np.uint32)
    entries["topic_id"] = table["topic_id"][is_entry].view(np.uint32)
    return order, Batch(seqs[is_entry], entries)
