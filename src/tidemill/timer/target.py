"""The target file: what the broker passes to the timer runner.

    offset  bytes  field
    0       4      magic "TMTG"
    4       4      format
    8       8      epoch: of the runner that may take steps; a step with another one does nothing
    16      8      now, Unix ms
    24      8      synced end: entries below this seq may be absorbed
    32      4      runner: 1 embedded, 2 spark
    36      4      CRC-32 of bytes 0..36

Little-endian. Format 1. `timer/target` is written in place by the broker alone.

Invariants: the epoch only rises, also over a deleted or damaged file; a raised epoch is durable before
a runner acts under it.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.timer.cursor import CURSOR_FORMAT, CURSOR_NAME, Cursor, decode_cursor
from tidemill.timer.ready_files import ReadyFiles
from tidemill.timer.ready_format import Runner

TARGET_FORMAT = 1
TARGET_NAME = "target"

_MAGIC = b"TMTG"
_FIELDS = struct.Struct("<4sIQqqI")
_CRC = struct.Struct("<I")
TARGET_BYTES = _FIELDS.size + _CRC.size
assert TARGET_BYTES == 40

_SHARD_PREFIX = "shard-"
# A reader may meet a write half done; the next look finds it whole.
_READ_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Target:
    epoch: int
    now_ms: int
    synced_end_seq: int
    runner: Runner = Runner.EMBEDDED


def encode_target(target: Target) -> bytes:
    fields = _FIELDS.pack(
        _MAGIC, TARGET_FORMAT, target.epoch, target.now_ms, target.synced_end_seq, target.runner
    )
    return fields + _CRC.pack(zlib.crc32(fields))


def decode_target(data: bytes) -> Target:
    """Raises `CorruptionError` if the bytes are torn or not a target."""
    if len(data) != TARGET_BYTES or data[:4] != _MAGIC:
        raise CorruptionError("not a timer target; start the broker to write it again")
    _, version, epoch, now_ms, synced_end_seq, runner = _FIELDS.unpack_from(data)
    if _CRC.unpack_from(data, _FIELDS.size)[0] != zlib.crc32(data[: _FIELDS.size]):
        raise CorruptionError("the timer target fails its checksum; start the broker to write it again")
    if version > TARGET_FORMAT:
        raise NewerFormatError(f"the timer target has format {version}; use the newer Tidemill that wrote it")
    return Target(epoch, now_ms, synced_end_seq, Runner(runner))


def read_target(disk: Disk, timer_directory: Path) -> Target | None:
    """The target, or None where no broker has written one. Raises `CorruptionError` if it stays torn."""
    path = timer_directory / TARGET_NAME
    if not disk.exists(path):
        return None
    with closing(disk.open(path)) as file:
        for _ in range(_READ_ATTEMPTS - 1):
            with suppress(CorruptionError):
                return decode_target(file.read(0, TARGET_BYTES))
        return decode_target(file.read(0, TARGET_BYTES))


def write_target(disk: Disk, timer_directory: Path, target: Target, *, sync: bool = False) -> None:
    """Replace the target; with `sync` it survives a power cut."""
    with closing(disk.open(timer_directory / TARGET_NAME, create=True)) as file:
        file.write(0, encode_target(target))
        if sync:
            file.sync()
    if sync:
        disk.sync_dir(timer_directory)


def raise_epoch(
    disk: Disk,
    timer_directory: Path,
    now_ms: int,
    synced_end_seq: int,
    runner: Runner = Runner.EMBEDDED,
    *,
    above: int = 0,
) -> int:
    """Begin a new epoch, higher than `above` and than all that the directory shows, durably. Returns it."""
    epochs = [above]
    with suppress(CorruptionError):  # torn by a power cut; the shards still know the epoch they worked under
        target = read_target(disk, timer_directory)
        if target is not None:
            epochs.append(target.epoch)
    for directory in shard_directories(disk, timer_directory):
        cursor = read_cursor(disk, directory)
        if cursor is not None:
            epochs.append(cursor.epoch)
        epochs += [name.epoch for name in ReadyFiles(disk, directory).names()]
    epoch = max(epochs) + 1
    disk.make_dir(timer_directory)
    write_target(disk, timer_directory, Target(epoch, now_ms, synced_end_seq, runner), sync=True)
    return epoch


def shard_directory(timer_directory: Path, shard: int) -> Path:
    return timer_directory / f"{_SHARD_PREFIX}{shard:03d}"


def shard_of(directory: Path) -> int:
    """The number of the shard in a directory of `shard_directories`."""
    return int(directory.name.removeprefix(_SHARD_PREFIX))


def shard_directories(disk: Disk, timer_directory: Path) -> list[Path]:
    """The shard directories there are, also those of an older number of shards."""
    names = disk.names(timer_directory)
    return [
        timer_directory / name
        for name in names
        if name.startswith(_SHARD_PREFIX) and name[len(_SHARD_PREFIX) :].isdigit()
    ]


def read_cursor(disk: Disk, directory: Path) -> Cursor | None:
    """The durable cursor of a shard, without its lock; None where there is none to read."""
    try:
        content = Checkpoint(disk, directory, CURSOR_NAME, CURSOR_FORMAT, decode_cursor).load()
        return None if content is None else decode_cursor(content)
    except (CorruptionError, NewerFormatError):
        return None
