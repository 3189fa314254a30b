"""How many messages go into one frame. Pure: sizes in, parts out.

A frame of single sends or of moved messages is bounded by rows and by bytes, so that it fits a segment, is
read back quickly, and holds the writer's lock only for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tidemill.core.limits import MIB
from tidemill.core.model import StoredMessage
from tidemill.core.splitting import split
from tidemill.log.arrays import U32

_FRAME_COUNT = 8192
_FRAME_BYTES = 16 * MIB
MOVE_COUNT_MAX = 1024
_MOVE_BYTES = 4 * MIB
# What a re-enter frame holds for each message beside the message, and once.
_MOVE_ROW_BYTES = 8
_MOVE_HEADER_BYTES = 64


def fits_a_frame(count: int, body_bytes: int) -> bool:
    """Whether so many messages with so many bytes of bodies go into one frame."""
    return count <= _FRAME_COUNT and body_bytes <= _FRAME_BYTES


def frame_bounds(body_sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Where each part of messages with bodies of these sizes starts and ends that fits a frame."""
    start = 0
    for part in split(body_sizes, _FRAME_COUNT, _FRAME_BYTES, int):
        yield start, start + len(part)
        start += len(part)


def framed(messages: Sequence[StoredMessage]) -> Iterator[Sequence[StoredMessage]]:
    """The messages in parts that each fit a frame."""
    return split(messages, _FRAME_COUNT, _FRAME_BYTES, lambda message: len(message.body))


def moved_together(sizes: U32) -> Iterator[tuple[int, int]]:
    """Where each part of messages with these stored sizes starts and ends that may move in one frame."""
    start = 0
    while start < len(sizes):
        total = np.cumsum(sizes[start : start + MOVE_COUNT_MAX], dtype=np.int64)
        end = start + max(1, int(np.searchsorted(total, _MOVE_BYTES, "right")))
        yield start, end
        start = end


def move_payload_bytes(sizes: U32) -> int:
    """At most how long the payload of a re-enter frame for messages with these stored sizes is."""
    return _MOVE_HEADER_BYTES + len(sizes) * _MOVE_ROW_BYTES + int(sizes.sum(dtype=np.int64))
