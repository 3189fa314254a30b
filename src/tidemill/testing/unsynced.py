"""What was written to one file since its last sync, and what a power cut leaves of it.

The file itself always holds everything written, so that reads and maps see it. Beside it this module
keeps, for each change since the last sync, the bytes it replaced and the bytes it put there. At a power
cut a copy of the file is taken back to the synced state and then some changes are let through again:

- a disk writes whole sectors of 512 bytes: a sector holds what the cache held after one of the changes
  to it, so a change is kept, lost or torn at sector bounds, and changes may survive in any order;
- the size follows the journal: a first part of the size changes is kept, the rest is not;
- bytes that lie beyond the size that was kept are gone.

Invariant: undoing `_changes` from last to first gives the bytes as of the last sync.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from tidemill.log.arrays import I64, Rows

SECTOR_BYTES = 512

_Fate = Literal["kept", "lost", "torn"]


@dataclass(frozen=True)
class _Pieces:
    """Equally long pieces of bytes and where each belongs."""

    offsets: list[int]
    data: bytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        width = len(self.data) // max(1, len(self.offsets))
        for at, offset in enumerate(self.offsets):
            yield offset, self.data[at * width : (at + 1) * width]


_NOTHING = _Pieces([], b"")


@dataclass
class _Change:
    """One write, scatter, truncate or preallocate."""

    pieces: _Pieces  # put into the file
    replaced: _Pieces  # were there before
    size_before: int
    size_after: int
    is_synced: bool = False  # a later sync covered it, while an earlier change stays in doubt
    is_doomed: bool = False  # its sync failed: no later sync brings it to the disk


class UnsyncedChanges:
    """The changes of one file since its last sync, in order."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []

    def __bool__(self) -> bool:
        return bool(self._changes)

    def wrote(self, offset: int, data: bytes, replaced: bytes, size_before: int) -> None:
        size_after = max(size_before, offset + len(data))
        self._changes.append(
            _Change(_Pieces([offset], data), _Pieces([offset], replaced), size_before, size_after)
        )

    def scattered(self, offsets: I64, rows: Rows, replaced: Rows, size: int) -> None:
        places = offsets.tolist()
        self._changes.append(
            _Change(_Pieces(places, rows.tobytes()), _Pieces(places, replaced.tobytes()), size, size)
        )

    def resized(self, size_before: int, size_after: int, lost_tail: bytes) -> None:
        """The file was truncated or grown; `lost_tail` was at `size_after`, trailing zeros left out."""
        self._changes.append(_Change(_NOTHING, _Pieces([size_after], lost_tail), size_before, size_after))

    def synced(self) -> None:
        """Everything so far is on the disk, except what an earlier failed sync has lost."""
        if not any(change.is_doomed for change in self._changes):
            self._changes.clear()
        for change in self._changes:
            change.is_synced = not change.is_doomed

    def sync_failed(self) -> None:
        """The kernel gives up on the dirty pages and marks them clean: no later sync writes them."""
        for change in self._changes:
            change.is_doomed = not change.is_synced

    def cut_power(self, fd: int, random: Random) -> None:
        """Turn the file at `fd`, which holds everything written, into what the power cut leaves."""
        self._undo(fd)
        base_size = os.fstat(fd).st_size
        seen = _Image(fd, base_size)  # what the page cache held, change by change
        left = _Image(fd, base_size)  # what reached the disk
        sizes_kept = random.choice((0, len(self._changes), random.randint(0, len(self._changes))))
        fates = _fates(len(self._changes), random)
        for number, (change, fate) in enumerate(zip(self._changes, fates, strict=True)):
            seen.resize(change.size_after)
            for offset, data in change.pieces:
                seen.put(offset, data)
            if change.is_synced or number < sizes_kept:
                left.resize(change.size_after)
            for sector in _surviving_sectors(change, "kept" if change.is_synced else fate, random):
                left.sectors[sector] = bytearray(seen.sector(sector))
        left.store()

    def _undo(self, fd: int) -> None:
        for change in reversed(self._changes):
            os.ftruncate(fd, change.size_before)
            for offset, data in change.replaced:
                os.pwrite(fd, data, offset)
            os.ftruncate(fd, change.size_before)


class _Image:
    """A file's bytes as a layer of changed sectors over the bytes at `fd`."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._base_end = size  # bytes of the file at `fd` from here on no longer shine through
        self.sectors: dict[int, bytearray] = {}

    def sector(self, number: int) -> bytearray:
        held = self.sectors.get(number)
        if held is None:
            start = number * SECTOR_BYTES
            visible = max(0, min(SECTOR_BYTES, self._base_end - start))
            held = bytearray(os.pread(self._fd, visible, start))
            held.extend(bytes(SECTOR_BYTES - len(held)))
            self.sectors[number] = held
        return held

    def put(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, SECTOR_BYTES)
            count = min(SECTOR_BYTES - start, len(data) - done)
            self.sector(number)[start : start + count] = data[done : done + count]
            done += count

    def resize(self, size: int) -> None:
        if size < self._size:
            self._base_end = min(self._base_end, size)
            last, start = divmod(size, SECTOR_BYTES)
            for number in [n for n in self.sectors if n > last or (n == last and start == 0)]:
                del self.sectors[number]
            if last in self.sectors:
                self.sectors[last][start:] = bytes(SECTOR_BYTES - start)
        self._size = size

    def store(self) -> None:
        """Write the image over the file it was laid upon."""
        os.ftruncate(self._fd, self._base_end)
        os.ftruncate(self._fd, self._size)
        for number, data in self.sectors.items():
            start = number * SECTOR_BYTES
            if start < self._size:
                os.pwrite(self._fd, data[: self._size - start], start)


def _fates(count: int, random: Random) -> list[_Fate]:
    """What becomes of each of `count` changes: all alike, the first ones kept, or each by its own luck."""
    luck = random.random()
    if luck < 0.15:
        return ["kept"] * count
    if luck < 0.3:
        return ["lost"] * count
    if luck < 0.6:
        kept = random.randint(0, count)
        in_order: list[_Fate] = ["lost"] * count
        in_order[:kept] = ["kept"] * kept
        if kept < count:
            in_order[kept] = "torn"
        return in_order
    each: tuple[_Fate, ...] = ("kept", "lost", "torn")
    return random.choices(each, (4, 3, 3), k=count)


def _surviving_sectors(change: _Change, fate: _Fate, random: Random) -> list[int]:
    touched: set[int] = set()
    for offset, data in change.pieces:
        touched.update(range(offset // SECTOR_BYTES, -(-(offset + len(data)) // SECTOR_BYTES)))
    if fate == "kept":
        return sorted(touched)
    if fate == "lost":
        return []
    if random.random() < 0.5:  # cut once, as by a disk that wrote front to back
        return sorted(touched)[: random.randint(0, len(touched))]
    return [sector for sector in sorted(touched) if random.random() < 0.5]
