"""What a batch counts for before it is read: its values written out, however few bytes they take."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidemill.broker.send.batch_bounds import WHOLE_BYTES_MAX, check_whole, decoded_bytes, framed
from tidemill.core.errors import BodyTooLargeError, RequestError, TooManyRequestsError
from tidemill.core.limits import FRAME_ROWS_MAX, KIB, MIB

_TEXTS = ["", "a", None, "b" * 100, "é" * 20, "a"]
_OFFSETS = 8 * len(_TEXTS)
_LENGTH = sum(len((text or "").encode()) for text in _TEXTS)


def _repeated(size: int, count: int) -> pa.RecordBatch:
    values = pa.array([b"q" * size])
    return pa.record_batch(
        {"body": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), values)}
    )


@pytest.mark.parametrize(
    "column",
    [
        pa.array(_TEXTS).dictionary_encode(),
        pa.array(_TEXTS).dictionary_encode(null_encoding="encode"),
        pa.array(_TEXTS, pa.large_string()).dictionary_encode(),
        pa.array(_TEXTS, pa.string_view()),
        pa.array(["before", *_TEXTS, "after"], pa.string_view()).slice(1, len(_TEXTS)),
        pa.array(["before", *_TEXTS, "after"]).dictionary_encode().slice(1, len(_TEXTS)),
        pa.DictionaryArray.from_arrays(pa.array(range(6), pa.uint64()), pa.array(_TEXTS).dictionary_encode()),
        pa.DictionaryArray.from_arrays(pa.array(range(6), pa.int8()), pa.array(_TEXTS, pa.string_view())),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(_TEXTS)).storage.dictionary_encode(),
    ],
)
def test_texts_count_as_they_are_written_out(column) -> None:
    assert decoded_bytes(pa.record_batch({"body": column})) == _LENGTH + _OFFSETS


def test_what_has_no_bytes_counts_by_its_rows() -> None:
    batch = pa.record_batch({"tag": pa.nulls(100), "key": pa.array([None] * 100).cast(pa.string_view())})
    assert decoded_bytes(batch) == 2 * 100 * 8
    assert decoded_bytes(pa.record_batch({"tag": pa.array([], pa.string_view()), "key": pa.nulls(0)})) == 0
    empty = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([], pa.string()))
    assert decoded_bytes(pa.record_batch({"tag": empty})) == 8
    numbers = pa.array([7] * 100).dictionary_encode()
    assert decoded_bytes(pa.record_batch({"tag": numbers})) >= 100 * 8


def test_plain_columns_count_as_they_are() -> None:
    batch = pa.record_batch({"body": [b"x" * 10] * 5, "delay_ms": [1] * 5})
    assert decoded_bytes(batch) == batch.nbytes == check_whole(batch)


def test_a_whole_batch_has_bounds_of_rows_and_of_bytes() -> None:
    assert check_whole(_repeated(700, FRAME_ROWS_MAX)) < WHOLE_BYTES_MAX
    with pytest.raises(BodyTooLargeError, match="every value written out"):
        check_whole(_repeated(800, FRAME_ROWS_MAX))
    with pytest.raises(BodyTooLargeError, match="a batch has 65537 rows; send at most 65536 in each"):
        check_whole(pa.record_batch({"body": pa.nulls(FRAME_ROWS_MAX + 1)}))
    with pytest.raises(RequestError, match="not valid Arrow data"):
        check_whole(pa.record_batch({"tag": pa.array([b"\xff"]).view(pa.string())}))


def test_measuring_writes_nothing_out() -> None:
    batch = _repeated(700, FRAME_ROWS_MAX)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    assert check_whole(batch) > 700 * FRAME_ROWS_MAX
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert highest < 4 * MIB
    assert pa.total_allocated_bytes() - before < MIB


def test_frames_are_cut_by_what_they_will_hold() -> None:
    batch = _repeated(20_000, FRAME_ROWS_MAX)
    parts = list(framed(batch))
    assert sum(part.num_rows for part in parts) == FRAME_ROWS_MAX
    assert max(map(decoded_bytes, parts)) <= WHOLE_BYTES_MAX
    # A dictionary of which each row takes little is no reason to cut.
    values = pa.array([b"q" * MIB] * 100)
    wide = pa.record_batch({"body": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), values)})
    assert len(list(framed(wide))) == 1


def test_sends_under_way_are_counted_as_they_are_written_out(small) -> None:
    batch = _repeated(4 * KIB, 10_000)
    in_flight = small.broker._sender.in_flight
    with in_flight.hold(in_flight.bytes_max - MIB):
        for is_whole in (False, True):
            with pytest.raises(TooManyRequestsError):
                small.broker.send_table(batch, topic="t", is_whole=is_whole)
    assert len(small.broker.send_table(batch, topic="t", is_whole=True)) == 10_000


def test_numbers_that_are_longer_as_texts_make_no_larger_frame(small, monkeypatch) -> None:
    numbers = pa.array([Decimal(10) ** 60] * 1_000, pa.decimal256(76, 10))
    batch = pa.record_batch({"body": pa.nulls(1_000).cast(pa.binary()).fill_null(b""), "key": numbers})
    small.broker.send_table(batch, topic="t", is_whole=True)
    monkeypatch.setattr("tidemill.broker.send.service.FRAME_BYTES_MAX", 200_000)
    with pytest.raises(BodyTooLargeError, match=r"a frame would have \d+ bytes, the limit is 200000"):
        small.broker.send_table(batch, topic="t", is_whole=True)
    assert small.broker.status().sent == 1_000
