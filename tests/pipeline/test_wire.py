"""What travels through Spark arrives as it was sent, in however many pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidemill.pipeline.wire import ENTRY_SCHEMA, NO_ENTRIES, Order, order_batch, read_order
from tidemill.store.formats.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR
from tidemill.timer.stages.admit import admit

ORDER = Order(shard=1, epoch=7, seq=900, tick=1_800_000_030, first_seq=100, end_seq=400)


def _entries(count: int) -> np.ndarray:
    rows = np.zeros(count, ENTRY)
    rows["place"] = (np.arange(count, dtype=np.uint64) << np.uint64(40)) + np.uint64(3)
    rows["deliver_at_ms"] = 1_800_000_000_000 + np.arange(count)
    rows["id_hash"] = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows["size"] = np.uint32(0xFFFF_FFFF)
    rows["topic_id"] = np.arange(count)
    rows["flags"][::5] = FLAG_NEAR
    rows["flags"][::7] = FLAG_LEVEL
    return rows


@pytest.mark.parametrize("piece_rows", [1, 7, 64, 300])
def test_an_order_arrives_with_its_entries(piece_rows: int) -> None:
    rows = _entries(300)
    batches = []
    for start in range(0, 300, piece_rows):
        piece = admit(rows[start : start + piece_rows], 100 + start, 1, 2, FLAG_NEAR | FLAG_LEVEL)
        batches.append(order_batch(ORDER, piece, 0.25))
    # Spark cuts and joins rows into batches of its own.
    table = pa.Table.from_batches(batches).combine_chunks()
    arrived = read_order(iter(table.to_batches(max_chunksize=3)))
    assert arrived is not None
    order, batch, scan_s = arrived
    whole = admit(rows, 100, 1, 2, FLAG_NEAR | FLAG_LEVEL)
    assert order == ORDER
    assert scan_s == 0.25 * len(batches)
    assert batch.seqs.tolist() == whole.seqs.tolist()
    assert batch.entries.tobytes() == whole.entries.tobytes()


def test_an_order_without_entries_arrives() -> None:
    arrived = read_order(iter([order_batch(ORDER, NO_ENTRIES)]))
    assert arrived is not None
    assert arrived[0] == ORDER
    assert len(arrived[1]) == 0


def test_an_empty_partition_orders_nothing() -> None:
    assert read_order(iter([pa.RecordBatch.from_pylist([], ENTRY_SCHEMA)])) is None
    assert read_order(iter([])) is None
