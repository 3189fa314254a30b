"""A ready file: what one step of one shard hands over to the releaser.

    offset  bytes  field
    0       4      magic "TMRD"
    4       2      format
    6       2      runner: 1 embedded, 2 spark
    8       4      shard
    12      4      CRC-32 of this header (with zero here) and of all that follows it
    16      8      epoch
    24      8      step
    32      8      tick the shard stood at before the step
    40      8      tick the shard stands at after it
    48      8      row count
    56      4      placements_kind: how the rows' placements are stored (store/formats/placements_format.py)
    60      4      zero
    64      16 n   rows (ready_row_format.py): deliver-at, seq
    then    2 n    placements of each row, in format 2 alone

Little-endian. Format 2 where the rows' placements are stored one by one, else 1.

Invariant: rows are sorted by (deliver-at, seq) and distinct.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.log.arrays import U16
from tidemill.store.formats.placements_format import (
    PLACEMENTS_EACH,
    check_placements_kind,
    placements_kind_of,
    placements_of,
)
from tidemill.timer.ready_row_format import READY, READY_BYTES, ReadyRows

READY_FORMAT = 2
_PLAIN_FORMAT = 1

_MAGIC = b"TMRD"
_HEADER = struct.Struct("<4sHHIIQQqqQI4x")
READY_HEADER_BYTES = 64
assert _HEADER.size == READY_HEADER_BYTES


class Runner(IntEnum):
    """The timer runner that wrote the file."""

    EMBEDDED = 1
    SPARK = 2


@dataclass(frozen=True, slots=True)
class ReadyHeader:
    runner: Runner
    shard: int
    epoch: int
    step: int
    from_tick: int
    until_tick: int


def encode_ready(header: ReadyHeader, rows: ReadyRows, placements: U16) -> bytes:
    """The whole file."""
    assert rows.dtype == READY
    assert len(placements) == len(rows)
    placements_kind = placements_kind_of(placements)
    body = np.ascontiguousarray(rows).tobytes()
    if placements_kind == PLACEMENTS_EACH:
        body += placements.astype("<u2").tobytes()
    crc = zlib.crc32(body, zlib.crc32(_pack(header, len(rows), placements_kind, 0)))
    return _pack(header, len(rows), placements_kind, crc) + body


def decode_ready(data: bytes | memoryview) -> tuple[ReadyHeader, ReadyRows, U16]:
    """Header, rows and the placements of each; `CorruptionError` if bytes were changed."""
    if len(data) < READY_HEADER_BYTES or bytes(data[:4]) != _MAGIC:
        raise CorruptionError("not a ready file")
    _, version, runner, shard, crc, epoch, step, from_tick, until_tick, count, placements_kind = (
        _HEADER.unpack_from(data)
    )
    if version > READY_FORMAT:
        raise NewerFormatError(
            f"a ready file has format {version}, this Tidemill reads up to {READY_FORMAT}; "
            "use the newer Tidemill that wrote it"
        )
    placements_bytes = 2 * count if placements_kind == PLACEMENTS_EACH else 0
    body = data[READY_HEADER_BYTES : READY_HEADER_BYTES + count * READY_BYTES + placements_bytes]
    zeroed = bytes(data[:12]) + bytes(4) + bytes(data[16:READY_HEADER_BYTES])
    if len(body) != count * READY_BYTES + placements_bytes or zlib.crc32(body, zlib.crc32(zeroed)) != crc:
        raise CorruptionError("it fails its checksum")
    check_placements_kind(placements_kind)  # not before the checksum: a damaged byte is no newer format
    header = ReadyHeader(Runner(runner), shard, epoch, step, from_tick, until_tick)
    rows = np.frombuffer(body, READY, count)
    if placements_kind != PLACEMENTS_EACH:
        return header, rows, placements_of(placements_kind, count)
    return header, rows, np.frombuffer(body, "<u2", count, count * READY_BYTES)


def _pack(header: ReadyHeader, count: int, placements_kind: int, crc: int) -> bytes:
    return _HEADER.pack(
        _MAGIC,
        READY_FORMAT if placements_kind == PLACEMENTS_EACH else _PLAIN_FORMAT,
        header.runner,
        header.shard,
        crc,
        header.epoch,
        header.step,
        header.from_tick,
        header.until_tick,
        count,
        placements_kind,
    )
