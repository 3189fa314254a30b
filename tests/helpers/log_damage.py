"""Damage to frames of a running broker's commit log, as a bad disk would do it, for tests."""

from __future__ import annotations

import os

from tidemill.log.frame import HEADER_BYTES

_BODY_FROM_END = 3


def place_of_seq(small, seq: int) -> int:
    return int(small.broker.store.entry(seq)["place"])


def place_in_queue(small, topic: str, queue_id: int, offset: int) -> int:
    queue = (small.broker.topics.require(topic).id, queue_id)
    return int(small.broker.store.queues.read(queue, offset, offset + 1)[0]["place"])


def damage_frame(small, frame_offset: int, at: int | None = None, content: bytes | None = None) -> bytes:
    """Flip a bit of a frame's payload near its end (or put `content` at byte `at` of the frame).

    Returns the bytes that were there.
    """
    log = small.broker.store.log
    frame = log.frame(frame_offset)
    start = max(s for s in log.segment_starts() if s <= frame_offset)
    if at is None:
        at = HEADER_BYTES + len(frame.payload) - _BODY_FROM_END
    fd = os.open(small.directory / "log" / f"{start:020d}.log", os.O_RDWR)
    try:
        before = os.pread(fd, len(content) if content else 1, frame_offset - start + at)
        os.pwrite(fd, content or bytes([before[0] ^ 4]), frame_offset - start + at)
    finally:
        os.close(fd)
    return before


def damage_message(small, seq: int, **how) -> bytes:
    return damage_frame(small, place_of_seq(small, seq) >> 16, **how)
