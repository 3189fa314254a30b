"""What goes into one request, and into one frame of a table: never more than the broker takes."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import tidemill
from helpers.http_broker import http_broker
from tidemill.client.send.request_limits import BYTES_MAX, MESSAGES_MAX, in_requests
from tidemill.client.tables.flight_link import _BATCH_BYTES, framed
from tidemill.core.limits import BODY_BYTES_MAX, FRAME_BYTES_MAX, MIB
from tidemill.core.model import CancelAnswer, Draft, SendResult

_LARGEST = b"x" * BODY_BYTES_MAX


def test_small_messages_are_cut_by_their_number() -> None:
    parts = list(in_requests(Draft("t", b"x", id=str(number)) for number in range(MESSAGES_MAX + 1)))
    assert [len(part) for part in parts] == [MESSAGES_MAX, 1]
    assert [draft.id for part in parts for draft in part] == [str(n) for n in range(MESSAGES_MAX + 1)]
    assert list(in_requests([])) == []


def test_large_messages_are_cut_by_their_bytes() -> None:
    small, large, huge = Draft("t", b"x"), Draft("t", _LARGEST), Draft("t", b"x" * (BYTES_MAX + 1))
    sizes = [len(part) for part in in_requests([large, large, large, small, huge, small])]
    assert sizes == [2, 2, 1, 1]


def test_large_properties_count_too() -> None:
    draft = Draft("t", b"", properties={"a": "x" * MIB})
    assert max(map(len, in_requests([draft] * 20))) < 8


def test_every_draft_has_an_id_and_what_is_none_goes_along_to_be_refused() -> None:
    (part,) = in_requests([Draft("t", b""), Draft("t", None), "no draft"])  # type: ignore[list-item, arg-type]
    assert part[0].id and part[1].id and part[2] == "no draft"


def test_more_bytes_than_a_request_may_have_are_sent_in_several(tmp_path, monkeypatch) -> None:
    with http_broker(tmp_path / "data") as served, tidemill.Client(served.endpoint, retry_for=0) as client:
        sizes, carry = [], client._carry

        def measured(way, head, content, *arguments, **options):
            sizes.append(len(content))
            return carry(way, head, content, *arguments, **options)

        monkeypatch.setattr(client, "_carry", measured)
        answers = client.send_many([Draft("t", _LARGEST, delay_ms=7_200_000)] * 16)
        assert [type(answer) for answer in answers] == [SendResult] * 16
        assert max(sizes) < FRAME_BYTES_MAX


def test_more_handles_than_a_request_may_have_are_cancelled_in_several(tmp_path) -> None:
    async def cancel(count: int) -> list[CancelAnswer]:
        async with tidemill.AsyncClient(served.endpoint, retry_for=0) as client:
            receipt = await client.send("t", b"x", delay="1h")
            return await client.cancel_many([receipt.handle] * count)

    with http_broker(tmp_path / "data") as served:
        answers = asyncio.run(cancel(65_537))
    assert len(answers) == 65_537
    assert answers[0] is CancelAnswer.CANCELLED
    assert set(answers[1:]) == {CancelAnswer.ALREADY_CANCELLED}


def _rows(*bodies: bytes) -> pa.Table:
    return pa.table({"body": pa.array(bodies, pa.binary()), "id": [str(n) for n in range(len(bodies))]})


def test_a_table_of_like_rows_is_cut_evenly() -> None:
    sizes = [frame.num_rows for frame in framed(_rows(*[b"x" * 1024] * 30_000))]
    assert len(sizes) == 3 and max(sizes) - min(sizes[:-1]) == 0


def test_what_rows_share_is_not_cut_to_pieces() -> None:
    dictionary = pa.array([bytes([letter]) * BODY_BYTES_MAX for letter in range(8)], pa.binary())
    bodies = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), dictionary)
    assert len(list(framed(pa.table({"body": bodies})))) < 5


@pytest.mark.parametrize("at", [0, 30_000, 60_000])
def test_a_few_large_rows_among_many_small_ones_are_cut_by_their_real_size(at) -> None:
    small = [b"x"] * 60_000
    table = _rows(*small[:at], *[_LARGEST] * 20, *small[at:])
    frames = list(framed(table))
    assert max(frame.nbytes for frame in frames) <= 2 * _BATCH_BYTES
    assert [name for frame in frames for name in frame.column("id").to_pylist()] == table["id"].to_pylist()
    assert len(frames) < 40
