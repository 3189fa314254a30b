"""A frame is verified when it is read: small ones every time, large ones once for each mapping."""

from __future__ import annotations

import os

import pytest

from tidemill.core.errors import DamagedFrameError
from tidemill.log.disk import RealDisk
from tidemill.log.frame import COPY_BYTES_MAX, HEADER_BYTES
from tidemill.log.segments import SegmentedLog


@pytest.fixture
def log(tmp_path):
    log = SegmentedLog(RealDisk(), tmp_path, segment_bytes=1 << 20, opening=lambda _: (1, b"opening"))
    assert list(log.recover(0, 0)) == []
    yield log
    log.close()


def flip(log, offset, at=HEADER_BYTES):
    start = max(s for s in log.segment_starts() if s <= offset)
    fd = os.open(log._path(start), os.O_RDWR)
    before = os.pread(fd, 1, offset - start + at)
    os.pwrite(fd, bytes([before[0] ^ 1]), offset - start + at)
    os.close(fd)


def is_damaged(log, offset):
    try:
        log.frame(offset)
    except DamagedFrameError as error:
        return error.offset == offset
    return False


@pytest.mark.parametrize("size", [1, 1000, COPY_BYTES_MAX])
def test_a_small_frame_is_verified_by_every_read_and_its_payload_is_a_copy(log, size):
    offset = log.append(2, [b"a" * size], 0)
    payload = log.frame(offset).payload
    flip(log, offset)
    assert bytes(payload) == b"a" * size
    assert is_damaged(log, offset)
    flip(log, offset)
    assert not is_damaged(log, offset)


def test_a_large_frame_is_verified_when_it_is_first_read_after_a_mapping_or_when_that_is_forgotten(log):
    offset = log.append(2, [b"a" * (COPY_BYTES_MAX + 1)], 0)
    flip(log, offset)
    assert is_damaged(log, offset)
    flip(log, offset)
    assert log.frame(offset) is log.frame(offset)
    flip(log, offset)
    assert not is_damaged(log, offset)
    log.forget_verified()
    assert is_damaged(log, offset)
    flip(log, offset)
    log.frame(offset)
    log.append(2, [bytes((1 << 20) - 100)], 0)  # a new segment: this one is mapped anew
    flip(log, offset)
    assert is_damaged(log, offset)


@pytest.mark.parametrize("at", [0, 4, 5, 8, 12, 16, 24, 32])
def test_every_field_of_a_header_is_verified(log, at):
    offset = log.append(2, [b"abc"], 0)
    flip(log, offset, at)
    assert is_damaged(log, offset)


def test_damage_ends_at_the_next_frame_that_reads_back_also_in_the_next_segment(log):
    offsets = [log.append(2, [b"%d" % i * 300_000], 0) for i in range(4)]
    assert len(log.segment_starts()) == 2
    assert log.frame_after(offsets[0]).offset == offsets[1]
    flip(log, offsets[1])
    flip(log, offsets[2])
    assert log.frame_after(offsets[0]).offset == log.segment_starts()[1]
    assert log.frame_after(offsets[3]) is None


def test_what_is_below_the_head_is_damaged_not_a_failure(log):
    offsets = [log.append(2, [b"%d" % i * 300_000], 0) for i in range(8)]
    log.sync()
    log.cut_head(log.segment_starts()[1])
    assert is_damaged(log, offsets[0])


def test_the_read_after_an_append_does_not_verify(log, monkeypatch):
    offset = log.append(2, [b"abc"], 0)
    monkeypatch.setattr("tidemill.log.frame.zlib.crc32", None)
    assert bytes(log.appended_frame(offset).payload) == b"abc"
