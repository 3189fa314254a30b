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
    56      4      trips_kind: how the rows' trips are stored (store/formats/placements_format.py)
    60      4      zero
    64      16 n   rows (ready_row_format.py): deliver-at, seq
    then    2 n    trips of each row, in format 2 alone

Little-endian. Format 2 where the rows' trips are stored one by one, else 1.

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
from tidemill.store.formats.placements_format import TRIPS_EACH, check_trips_kind, trips_kind_of, trips_of
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


def encode_ready(header: ReadyHeader, rows: ReadyRows, trips: U16) -> bytes:
    """The whole file."""
    assert rows.dtype == READY
    assert len(trips) == len(rows)
    trips_kind = trips_kind_of(trips)
    body = np.ascontiguousarray(rows).tobytes()
    if trips_kind == TRIPS_EACH:
        body += trips.astype("<u2").tobytes()
    crc = zlib.crc32(body, zlib.crc32(_pack(header, len(rows), trips_kind, 0)))
    return _pack(header, len(rows), trips_kind, crc) + body


def decode_ready(data: bytes | memoryview) -> tuple[ReadyHeader, ReadyRows, U16]:
    """Header, rows and the trips of each; raises `CorruptionError` if the bytes are not what was written."""
    if len(data) < READY_HEADER_BYTES or bytes(data[:4]) != _MAGIC:
        raise CorruptionError("not a ready file")
    _, version, runner, shard, crc, epoch, step, from_tick, until_tick, count, trips_kind = (
        _HEADER.unpack_from(data)
    )
    if version > READY_FORMAT:
        raise NewerFormatError(
            f"a ready file has format {version}, this Tidemill reads up to {READY_FORMAT}; "
            "use the newer Tidemill that wrote it"
        )
    trips_bytes = 2 * count if trips_kind == TRIPS_EACH else 0
    body = data[READY_HEADER_BYTES : READY_HEADER_BYTES + count * READY_BYTES + trips_bytes]
    zeroed = bytes(data[:12]) + bytes(4) + bytes(data[16:READY_HEADER_BYTES])
    if len(body) != count * READY_BYTES + trips_bytes or zlib.crc32(body, zlib.crc32(zeroed)) != crc:
        raise CorruptionError("it fails its checksum")
    check_trips_kind(trips_kind)  # not before the checksum: a damaged byte is no newer format
    header = ReadyHeader(Runner(runner), shard, epoch, step, from_tick, until_tick)
    rows = np.frombuffer(body, READY, count)
    if trips_kind != TRIPS_EACH:
        return header, rows, trips_of(trips_kind, count)
    return header, rows, np.frombuffer(body, "<u2", count, count * READY_BYTES)


def _pack(header: ReadyHeader, count: int, trips_kind: int, crc: int) -> bytes:
    return _HEADER.pack(
        _MAGIC,
        READY_FORMAT if trips_kind == TRIPS_EACH else _PLAIN_FORMAT,
        header.runner,
        header.shard,
        crc,
        header.epoch,
        header.step,
        header.from_tick,
        header.until_tick,
        count,
        trips_kind,
    )
