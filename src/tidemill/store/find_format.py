"""A run of the find index as a file: pairs (hash, ref), sorted by hash, never changed once written.

    offset  bytes  field
    0       4      magic "TMFI"
    4       4      format
    8       8      pair count
    16      8      log offset this run starts at
    24      8      log offset this run reflects (exclusive)
    32      8 x n  hashes, ascending
    ...     8 x n  refs: a seq, or a place with the top bit set for a message that is not timed

Little-endian. Format 1. Derived: a file that does not read back is dropped and made again from the log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

RUN_FORMAT = 1
RUN_MAGIC = b"TMFI"
_HEADER = struct.Struct("<4sIQQQ")
RUN_HEADER_BYTES = _HEADER.size
PAIR_BYTES = 16
assert RUN_HEADER_BYTES == 32


@dataclass(frozen=True, slots=True)
class RunHeader:
    count: int
    first_offset: int
    end_offset: int


def encode_run_header(header: RunHeader) -> bytes:
    return _HEADER.pack(RUN_MAGIC, RUN_FORMAT, header.count, header.first_offset, header.end_offset)


def decode_run_header(data: bytes, file_bytes: int) -> RunHeader | None:
    """The header of a run of `file_bytes`; None if it is not whole or of another format."""
    if len(data) < RUN_HEADER_BYTES:
        return None
    magic, version, count, first_offset, end_offset = _HEADER.unpack_from(data)
    if magic != RUN_MAGIC or version != RUN_FORMAT or file_bytes != RUN_HEADER_BYTES + PAIR_BYTES * count:
        return None
    return RunHeader(count, first_offset, end_offset)
