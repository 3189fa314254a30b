"""A run of the find index as a file: pairs (hash, ref), sorted by hash, never changed once written.

    offset  bytes  field
    0       4      magic "TMFI"
    4       4      format
    8       8      pair count
    16      8      log offset this run starts at
    24      8      log offset this run reflects (exclusive)
    32      4      CRC-32 of bytes 0..32 and of everything from byte 36 on
    36      4      zero
    40      8 x n  hashes, ascending
    ...     8 x n  refs: a seq, or a place with the top bit set for a message that is not timed

Little-endian. Format 2; format 1 had no checksum and pairs from byte 32 on. Derived: a file that does not
read back, or is of format 1, is dropped and derived again from the log. It is never given a checksum as it is
found.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from tidemill.log.disk import ByteArray
from tidemill.store.find.find_runs import Pairs

RUN_FORMAT = 2
RUN_MAGIC = b"TMFI"
_HEADER = struct.Struct("<4sIQQQ")
_CHECKSUM = struct.Struct("<I")
_PADDING = bytes(4)
RUN_HEADER_BYTES = _HEADER.size + _CHECKSUM.size + len(_PADDING)
_SUMMED_AGAIN_AT = _HEADER.size + _CHECKSUM.size
PAIR_BYTES = 16
assert RUN_HEADER_BYTES == 40


@dataclass(frozen=True, slots=True)
class RunHeader:
    count: int
    first_offset: int
    end_offset: int


def encode_run_header(header: RunHeader, pairs: Pairs) -> bytes:
    """The header of a run of these pairs."""
    return _header_bytes(header) + _CHECKSUM.pack(run_checksum(header, pairs)) + _PADDING


def run_checksum(header: RunHeader, pairs: Pairs) -> int:
    """The checksum of a run of these pairs."""
    crc = zlib.crc32(_PADDING, zlib.crc32(_header_bytes(header)))
    for column in pairs:
        crc = zlib.crc32(np.ascontiguousarray(column, "<u8").view(np.uint8).data, crc)
    return crc


def _header_bytes(header: RunHeader) -> bytes:
    return _HEADER.pack(RUN_MAGIC, RUN_FORMAT, header.count, header.first_offset, header.end_offset)


def decode_run_header(data: bytes, file_bytes: int) -> RunHeader | None:
    """The header of a run of `file_bytes`; None if it is not whole or of another format."""
    if len(data) < RUN_HEADER_BYTES:
        return None
    magic, version, count, first_offset, end_offset = _HEADER.unpack_from(data)
    if magic != RUN_MAGIC or version != RUN_FORMAT or file_bytes != RUN_HEADER_BYTES + PAIR_BYTES * count:
        return None
    return RunHeader(count, first_offset, end_offset)


def named_checksum(data: bytes) -> int:
    """The checksum that a header names."""
    return int(_CHECKSUM.unpack_from(data, _HEADER.size)[0])


def is_of_format_1(data: bytes) -> bool:
    """Whether this is the beginning of a run that an older version wrote, which is no damage."""
    return data[:8] == RUN_MAGIC + (1).to_bytes(4, "little")


class RunSum:
    """The checksum of a run's file, worked out a bounded part at a time."""

    def __init__(self, file: ByteArray) -> None:
        self._file = file
        self._crc = zlib.crc32(file[: _HEADER.size].data)
        self._at = _SUMMED_AGAIN_AT

    def add(self, bytes_max: int) -> int:
        """Go on by so many bytes; returns how many there were."""
        part = self._file[self._at : self._at + bytes_max]
        self._crc = zlib.crc32(part.data, self._crc)
        self._at += len(part)
        return len(part)

    @property
    def is_complete(self) -> bool:
        return self._at == len(self._file)

    @property
    def is_right(self) -> bool:
        """Whether a complete sum is the one that the file names."""
        return self._crc == named_checksum(self._file[:RUN_HEADER_BYTES].tobytes())


def is_whole(file: ByteArray) -> bool:
    """Whether the checksum of a file with a run's header is right."""
    total = RunSum(file)
    total.add(len(file))
    return total.is_right
