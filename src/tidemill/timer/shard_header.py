"""The header of a shard: what its files were made for.

    offset  bytes  field
    0       4      format of the timer files
    4       4      tick, ms
    8       4      shard
    12      4      number of shards
    16      8      slots; 0 where RocksDB keeps the timers, and then the two below are 0 as well
    24      8      roll window, slots
    32      8      TimerLog segment, bytes

Little-endian. Format 1. Kept in two generations by `log/checkpoint.py`, which adds the checksum.

Invariant: written last when a shard is made and removed first when it is dropped, so a directory with a
header is whole.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.timer.settings import StoreKind, TimerSettings

HEADER_FORMAT = 1
HEADER_NAME = "header"

_FIELDS = struct.Struct("<IIIIQQQ")


def encode_header(settings: TimerSettings, shard: int) -> bytes:
    wheel_shape = (
        (settings.slots, settings.roll_window_slots, settings.segment_bytes)
        if settings.store is StoreKind.WHEEL
        else (0, 0, 0)
    )
    return _FIELDS.pack(HEADER_FORMAT, settings.tick_ms, shard, settings.shards, *wheel_shape)


def decode_header(content: bytes) -> tuple[TimerSettings, int]:
    """Settings and shard number a shard was made for; `CorruptionError` if the length is not a header's."""
    if len(content) != _FIELDS.size:
        raise CorruptionError(
            f"a shard's header has {len(content)} bytes instead of {_FIELDS.size}; "
            "delete the timer directory to rebuild it"
        )
    _, tick_ms, shard, shards, slots, window, segment_bytes = _FIELDS.unpack(content)
    if not slots:
        return TimerSettings(tick_ms, shards, store=StoreKind.ROCKSDB), shard
    return TimerSettings(tick_ms, shards, slots, window, segment_bytes), shard


def header_checkpoint(disk: Disk, directory: Path) -> Checkpoint:
    return Checkpoint(disk, directory, HEADER_NAME, HEADER_FORMAT, decode_header)


def read_header(disk: Disk, directory: Path) -> bytes | None:
    """The header's content, or None where there is none this Tidemill can read."""
    try:
        return header_checkpoint(disk, directory).load()
    except NewerFormatError:
        return None
