"""The frame: the unit in which a log is written, checked and cut.

    offset  bytes  field
    0       4      magic "TMFR"
    4       1      kind (the owner's)
    5       1      frame format: 1, or more where the payload or kind is one that readers of 1 do not know
    6       2      zero
    8       4      payload length
    12      4      CRC-32 of bytes 0..12, bytes 16..40 and the payload
    16      8      offset of this frame in the log
    24      8      synced end: the log was known to be safe up to here when this frame was written
    32      8      stamp: Unix ms when it was written
    40      n      payload, then zeros up to a multiple of 8

Little-endian. Pure: bytes in, values out.

A frame that does not read back is a *torn tail* when no frame says the log was safe beyond it, else it
is *corruption*. That is why every frame carries the synced end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.core.errors import NewerFormatError
from tidemill.log.disk import ByteArray, Bytes

FRAME_FORMAT = 3
PLAIN_FORMAT = 1
MAGIC = b"TMFR"
ALIGNMENT = 8
_HEADER = struct.Struct("<4sBBHIIQQQ")
HEADER_BYTES = _HEADER.size
_MAGIC_NUMBER = int.from_bytes(MAGIC, "little")
_FIND_BYTES = 1 << 20
# A payload up to this length is copied before it is verified, where the reader asks for that.
COPY_BYTES_MAX = 64 * 1024
assert HEADER_BYTES == 40


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as read back; `payload` is a view into the log's bytes."""

    offset: int
    kind: int
    synced_end: int
    stamp_ms: int
    payload: memoryview
    version: int = PLAIN_FORMAT

    @property
    def end(self) -> int:
        return self.offset + frame_bytes(len(self.payload))


def frame_bytes(payload_bytes: int) -> int:
    """What a payload takes in the log."""
    return (HEADER_BYTES + payload_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def payload_bytes(parts: Sequence[Bytes]) -> int:
    """The length of a payload made of `parts`."""
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def encode_header(
    kind: int,
    parts: Sequence[Bytes],
    offset: int,
    synced_end: int,
    stamp_ms: int,
    version: int = PLAIN_FORMAT,
) -> bytes:
    """The header for a payload made of `parts`, checksum included."""
    length = payload_bytes(parts)
    bare = _HEADER.pack(MAGIC, kind, version, 0, length, 0, offset, synced_end, stamp_ms)
    crc = zlib.crc32(bare[16:], zlib.crc32(bare[:12]))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return _HEADER.pack(MAGIC, kind, version, 0, length, crc, offset, synced_end, stamp_ms)


def decode_frame(
    data: ByteArray, position: int, offset: int, *, verify: bool, copies: bool = False
) -> Frame | None:
    """The frame that starts at `position` of `data` and claims log offset `offset`; None if it is not whole.

    Without `verify` the checksum is not looked at: for a frame that was just written. With `copies` a payload
    of up to `COPY_BYTES_MAX` is a copy: what was verified then stays as it was.
    """
    if position + HEADER_BYTES > len(data):
        return None
    header = data[position : position + HEADER_BYTES].tobytes()
    magic, kind, version, _, length, crc, own_offset, synced_end, stamp_ms = _HEADER.unpack(header)
    if magic != MAGIC or own_offset != offset:
        return None
    start = position + HEADER_BYTES
    if start + length > len(data):
        return None
    part = data[start : start + length]
    payload = part.copy().data if copies and length <= COPY_BYTES_MAX else part.data
    if verify and crc != zlib.crc32(payload, zlib.crc32(header[16:], zlib.crc32(header[:12]))):
        return None
    if version > FRAME_FORMAT:
        raise NewerFormatError(
            f"the log has frames of format {version}, this Tidemill reads up to {FRAME_FORMAT}; "
            "use the newer Tidemill that wrote it"
        )
    return Frame(offset, kind, synced_end, stamp_ms, payload, version)


def newest_synced_end_after(data: ByteArray, position: int, segment_start: int) -> int:
    """The largest synced end in any whole frame at or after `position`; 0 where there is none.

    Used on the bytes behind a frame that does not read back, to distinguish a torn tail from corruption.
    """
    newest = 0
    while (frame := next_frame(data, position, segment_start)) is not None:
        newest = max(newest, frame.synced_end)
        # Not behind it: a frame may lie inside the payload of one that only seems whole.
        position = frame.offset - segment_start + ALIGNMENT
    return newest


def next_frame(data: ByteArray, position: int, segment_start: int) -> Frame | None:
    """The first whole frame at or after `position`; what does not read back is passed over."""
    position += -position % ALIGNMENT
    frame = decode_frame(data, position, segment_start + position, verify=True)
    while frame is None:
        found = _find(data, position + ALIGNMENT)
        if found is None:
            return None
        position = found
        frame = decode_frame(data, position, segment_start + position, verify=True)
    return frame


def _find(data: ByteArray, position: int) -> int | None:
    """Where the magic stands next, on a border between frames."""
    for start in range(position, len(data), _FIND_BYTES):
        words = data[start : min(len(data), start + _FIND_BYTES) // ALIGNMENT * ALIGNMENT].view("<u8")
        found = np.flatnonzero(words.astype(np.uint32) == _MAGIC_NUMBER)
        if len(found):
            return start + int(found[0]) * ALIGNMENT
    return None
