"""The request that a CANCEL or RE-ENTER frame carries out, where its caller gave it an id.

    offset  bytes  field
    0       16     request id
    16      8      hash of the request: the same id with another hash is another request
    24      4      part: which of the request's frames this is, from 1
    28      4      parts: how many frames the request needs
    32      8      how many messages its earlier parts changed
    40      4      rows: how many of the handles in the request this frame answers; 0 for a key or a range
    44      4      1 if there is an index for each row, else 0: row i names the frame's seq i
    48      4 x n  rows u32: which of the handles, in the order of the request
            4 x n  indexes u32 (if any): which of the frame's seqs each of those rows names

Little-endian; both arrays are padded to 8 bytes. Pure: values in, bytes out.

The rows make the answer repeatable whatever became of the messages: it is read from this frame alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from tidemill.log.arrays import U32

_HEADER = struct.Struct("<16sQIIQII")
REQUEST_BYTES = _HEADER.size
_NO_ROWS: U32 = np.empty(0, np.uint32)
assert REQUEST_BYTES == 48


@dataclass(frozen=True, slots=True)
class Request:
    """Which request a frame carries out, and which part of it."""

    id: bytes
    fingerprint: int
    part: int = 1
    parts: int = 1
    done: int = 0
    rows: U32 = field(default_factory=lambda: _NO_ROWS)
    indexes: U32 = field(default_factory=lambda: _NO_ROWS)
    text: str = ""  # the id as its caller gave it, for errors; it is not in the frame

    @property
    def size(self) -> int:
        """How many bytes it takes in its frame."""
        return REQUEST_BYTES + _array_bytes(len(self.rows)) + _array_bytes(len(self.indexes))

    def encode(self) -> bytes:
        has_indexes = len(self.indexes) > 0
        assert not has_indexes or len(self.indexes) == len(self.rows)
        header = _HEADER.pack(
            self.id, self.fingerprint, self.part, self.parts, self.done, len(self.rows), has_indexes
        )
        return header + _padded(self.rows) + _padded(self.indexes)

    @classmethod
    def read(cls, data: memoryview) -> tuple[Request, int]:
        """The request at the start of `data`, and how many bytes it takes."""
        request_id, fingerprint, part, parts, done, count, has_indexes = _HEADER.unpack_from(data)
        array_bytes = _array_bytes(count)
        rows = np.frombuffer(data, "<u4", count, REQUEST_BYTES)
        indexes, end = _NO_ROWS, REQUEST_BYTES + array_bytes
        if has_indexes:
            indexes, end = np.frombuffer(data, "<u4", count, end), end + array_bytes
        return cls(request_id, fingerprint, part, parts, done, rows, indexes), end


def _array_bytes(count: int) -> int:
    return (4 * count + 7) // 8 * 8


def _padded(numbers: U32) -> bytes:
    data = numbers.astype("<u4").tobytes()
    return data + bytes(-len(data) % 8)
