"""The frame's bytes: golden, checked, and what a bad one tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import NewerFormatError
from tidemill.log.frame import (
    FRAME_FORMAT,
    HEADER_BYTES,
    decode_frame,
    encode_header,
    frame_bytes,
    newest_synced_end_after,
)

GOLDEN = Path(__file__).parents[2] / "golden"
_U64 = st.integers(0, 2**64 - 1)


def _frame(kind: int, payload: bytes, offset: int = 0, synced_end: int = 0, stamp_ms: int = 0) -> bytes:
    whole = encode_header(kind, [payload], offset, synced_end, stamp_ms) + payload
    return whole + bytes(frame_bytes(len(payload)) - len(whole))


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_a_frame_lies_on_disk_as_it_always_did():
    frame = _frame(
        7,
        b"payload of a frame",
        offset=0x1122334455667788,
        synced_end=0x0102030405060708,
        stamp_ms=1_800_000_000_000,
    )
    assert frame == (GOLDEN / "log-frame-1.bin").read_bytes()


@given(st.integers(0, 255), st.lists(st.binary(max_size=50), max_size=4), _U64, _U64, st.integers(0, 2**63))
def test_a_frame_reads_back(kind, parts, offset, synced_end, stamp_ms):
    payload = b"".join(parts)
    header = encode_header(kind, parts, offset, synced_end, stamp_ms)
    data = header + payload + bytes(frame_bytes(len(payload)) - HEADER_BYTES - len(payload))
    frame = decode_frame(_bytes(data), 0, offset, verify=True)
    assert frame is not None
    assert (frame.kind, bytes(frame.payload), frame.synced_end, frame.stamp_ms) == (
        kind,
        payload,
        synced_end,
        stamp_ms,
    )
    assert frame.end - offset == len(data)
    assert len(data) % 8 == 0


@given(st.binary(max_size=40), st.data())
def test_a_frame_with_any_one_bit_changed_does_not_read_back(payload, data):
    whole = bytearray(_frame(3, payload, offset=64, synced_end=32, stamp_ms=5))
    bit = data.draw(st.integers(0, 8 * (HEADER_BYTES + len(payload)) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert decode_frame(_bytes(bytes(whole)), 0, 64, verify=True) is None


@given(st.binary(min_size=1, max_size=40), st.integers(0, 79))
def test_a_cut_frame_does_not_read_back(payload, kept):
    whole = _frame(3, payload)
    kept = min(kept, HEADER_BYTES + len(payload) - 1)
    assert decode_frame(_bytes(whole[:kept]), 0, 0, verify=True) is None


def test_a_frame_found_at_another_offset_is_none():
    assert decode_frame(_bytes(_frame(3, b"x", offset=8)), 0, 16, verify=True) is None


def test_a_frame_of_a_newer_format_says_what_to_do():
    whole = bytearray(_frame(3, b"x"))
    whole[5] = FRAME_FORMAT + 1
    with pytest.raises(
        NewerFormatError, match=f"format {FRAME_FORMAT + 1}, this Tidemill reads up to {FRAME_FORMAT}"
    ):
        decode_frame(_bytes(bytes(whole)), 0, 0, verify=False)


def test_only_a_frame_that_an_older_reader_would_misread_has_the_newer_format():
    assert _frame(3, b"x")[5] == 1
    newer = encode_header(3, [b"x"], 0, 0, 0, 2) + b"x"
    frame = decode_frame(_bytes(newer + bytes(frame_bytes(1) - len(newer))), 0, 0, verify=True)
    assert newer[5] == 2
    assert frame is not None and bytes(frame.payload) == b"x" and frame.version == 2


def test_the_newest_synced_end_is_found_behind_rubbish():
    frames = [_frame(2, b"TMFR" * 5, 80, 8, 0), _frame(2, b"b", 144, 64, 0), _frame(2, b"c", 192, 16, 0)]
    data = bytes(80) + b"".join(frames)
    assert [len(frame) for frame in frames] == [64, 48, 48]
    assert newest_synced_end_after(_bytes(data), 0, 0) == 64
    assert newest_synced_end_after(_bytes(data), 192, 0) == 16
    assert newest_synced_end_after(_bytes(data), 200, 0) == 0
    torn = bytearray(data)
    torn[144 + 40] ^= 1
    assert newest_synced_end_after(_bytes(bytes(torn)), 8, 0) == 16
