"""A ready file: what one step of one shard hands over to the releaser.

    offset  bytes  field
    0       4      magic "TMRD"
    4       2      format
    6       2      runner: 1 embedded, 2 spark
    8       4      shard
    12      4      CRC-32 of this header (with zero here) and of the rows
    16      8      epoch
    24      8      step
    32      8      tick the shard stood at before the step
    40      8      tick the shard stands at after it
    48      8      row count
    56      8      zero
    64      16 n   rows: deliver-at Unix ms (8, signed), seq (8, unsigned)

Little-endian. Format 1.

Invariant: rows are sorted by (deliver-at, seq) and distinct.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import CorruptionError, NewerFormat

READY_FORMAT = 1

READY = np.dtype([("deliver_at_ms", "<i8"), ("seq", "<u8")])
READY_BYTES = 16
assert READY.itemsize == READY_BYTES

_MAGIC = b"TMRD"
_HEADER = struct.Struct("<4sHHIIQQqqQ8x")
READY_HEADER_BYTES = 64
assert _HEADER.size == READY_HEADER_BYTES

ReadyRows = npt.NDArray[Any]


class Runner(IntEnum):
    """Who turned the wheel."""

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


def empty_ready() -> ReadyRows:
    return np.empty(0, READY)


def encode_ready(header: ReadyHeader, rows: ReadyRows) -> bytes:
    """The whole file."""
    assert rows.dtype == READY
    body = np.ascontiguousarray(rows).tobytes()
    crc = zlib.crc32(body, zlib.crc32(_pack(header, len(rows), 0)))
    return _pack(header, len(rows), crc) + body


def decode_ready(data: bytes | memoryview) -> tuple[ReadyHeader, ReadyRows]:
    """Header and rows; raises `CorruptionError` if the bytes are not what was written."""
    if len(data) < READY_HEADER_BYTES or bytes(data[:4]) != _MAGIC:
        raise CorruptionError("not a ready file; remove it, the timer hands its messages over again")
    _, version, runner, shard, crc, epoch, step, from_tick, until_tick, count = _HEADER.unpack_from(data)
    if version > READY_FORMAT:
        raise NewerFormat(
            f"a ready file has format {version}, this Tidemill reads up to {READY_FORMAT}; "
            "use the newer Tidemill that wrote it"
        )
    body = data[READY_HEADER_BYTES : READY_HEADER_BYTES + count * READY_BYTES]
    zeroed = bytes(data[:12]) + bytes(4) + bytes(data[16:READY_HEADER_BYTES])
    if len(body) != count * READY_BYTES or zlib.crc32(body, zlib.crc32(zeroed)) != crc:
        raise CorruptionError("a ready file fails its checksum; delete the timer directory to rebuild it")
    header = ReadyHeader(Runner(runner), shard, epoch, step, from_tick, until_tick)
    return header, np.frombuffer(body, READY)


def _pack(header: ReadyHeader, count: int, crc: int) -> bytes:
    return _HEADER.pack(
        _MAGIC,
        READY_FORMAT,
        header.runner,
        header.shard,
        crc,
        header.epoch,
        header.step,
        header.from_tick,
        header.until_tick,
        count,
    )
