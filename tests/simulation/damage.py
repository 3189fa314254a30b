"""Damage to the files of a simulated broker: flipped bits, zeros, missing ends, pages in each other's
place."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import numpy as np

from tidemill.log.frame import newest_synced_end_after

# Those of a disk, and whole rows: of queues, of the wheel and of entries, and units of the TimerLog.
_PAGES = (16, 32, 40, 48, 52, 512, 4096)


def files_below(directory: Path) -> list[Path]:
    """Every file that has bytes, in a fixed order."""
    found = [Path(folder) / name for folder, _, names in os.walk(directory) for name in names]
    return sorted(path for path in found if path.name != "LOCK" and path.stat().st_size)


def damage(path: Path, random: Random, *, may_truncate: bool) -> str:
    """Damage one file in some way; says how."""
    kinds = [_flip, _flip, _zero, _swap, *((_truncate,) if may_truncate else ())]
    return f"{path.name}: {random.choice(kinds)(path, random)}"


def damage_log(path: Path, random: Random) -> str | None:
    """Flip a bit of a log's file below what the file itself says was safe; None where it says nothing.

    Above that, damage cannot be distinguished from a torn tail.
    """
    content = np.frombuffer(path.read_bytes(), np.uint8)
    safe = newest_synced_end_after(content, 0, int(path.stem)) - int(path.stem)
    if safe <= 0:
        return None
    at = random.randrange(safe)
    _put(path, at, bytes([int(content[at]) ^ 1 << random.randrange(8)]))
    return f"{path.name}: flip at {at}"


def _used(path: Path) -> int:
    """Up to where a file has bytes that are not zero: preallocated space is not worth damaging."""
    return max(1, len(path.read_bytes().rstrip(b"\0")))


def _put(path: Path, at: int, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, content, at)
    finally:
        os.close(fd)


def _flip(path: Path, random: Random) -> str:
    content = path.read_bytes()
    at = random.randrange(_used(path))
    for offset in {at, *(random.randrange(_used(path)) for _ in range(random.choice((0, 0, 3))))}:
        _put(path, offset, bytes([content[offset] ^ 1 << random.randrange(8)]))
    return f"flip at {at}"


def _zero(path: Path, random: Random) -> str:
    page = random.choice(_PAGES)
    at = random.randrange(_used(path)) // page * page
    length = min(page, path.stat().st_size - at)
    _put(path, at, bytes(length))
    return f"{length} zeros at {at}"


def _swap(path: Path, random: Random) -> str:
    content, page = path.read_bytes(), random.choice(_PAGES)
    pages = len(content) // page
    if pages < 2:
        return _zero(path, random)
    one, other = random.randrange(pages) * page, random.randrange(pages) * page
    _put(path, one, content[other : other + page])
    _put(path, other, content[one : one + page])
    return f"{page} bytes at {one} and {other} swapped"


def _truncate(path: Path, random: Random) -> str:
    length = random.randrange(_used(path))
    os.truncate(path, length)
    return f"cut to {length}"
