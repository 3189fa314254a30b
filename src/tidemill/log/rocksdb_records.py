"""The records of RocksDB's own logs (manifest, write-ahead log), looked at before RocksDB reads them.

RocksDB verifies a record before it uses it, but its reader can go round for ever on a damaged one whose kind
says that the file was used before. Ours never are, so such a kind is damage, and so is a record that crosses
the end of its block. Nothing else is checked here: what RocksDB reports by itself is left to it.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tidemill.core.errors import CorruptionError

_BLOCK_BYTES = 32 * 1024
_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_LAST_KIND = 4  # zero, whole, first, middle, last; above it are those of files that are used again


def require_readable(directory: Path) -> None:
    """`CorruptionError` if RocksDB might not come to the end of one of its logs in this directory."""
    if not directory.is_dir():
        return
    for path in sorted([*directory.glob("MANIFEST-*"), *directory.glob("*.log")]):
        at = _first_wrong_record(path.read_bytes())
        if at is not None:
            raise CorruptionError(
                f"{path}: the record at byte {at} is damaged; delete the timer directory to rebuild it"
            )


def _first_wrong_record(data: bytes) -> int | None:
    at = 0
    while True:
        left_in_block = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left_in_block < _HEAD.size:  # too short for a head: filled with zeros
            at += left_in_block
            continue
        if at + _HEAD.size > len(data):
            return None
        checksum, length, kind = _HEAD.unpack_from(data, at)
        if kind > _LAST_KIND or _HEAD.size + length > left_in_block:
            return at
        if not checksum and not length and not kind:  # set aside and not written yet
            return None
        at += _HEAD.size + length
