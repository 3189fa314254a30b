"""Reads the ready files of all shards by due time, and removes them when they have served.

Owns which files are known and how far each was read. Files are mapped, not loaded, so a backlog of millions
costs no memory of ours; what is due is merged over all files in order of due time. A file goes when each of
its rows was taken and is settled, or is held in its topic's backlog (the overdue scan at start-up finds
those again).

A file that is damaged is reported (`on_damage`) and passed over: its shard is built again, and the file goes
with it.

Owns also what the releaser knows of the shards in one step (`ShardsSeen`).

Invariant: handing over twice is harmless; forgetting is not. A file that is not known to be settled stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.core.model import Via
from tidemill.log.arrays import I64, U16, Flags, Rows
from tidemill.log.disk import Disk
from tidemill.release.due_rows import NO_ROWS, due_rows, joined, seqs_between
from tidemill.timer.ready_files import READY_DIRECTORY_NAME, parse_ready_name
from tidemill.timer.ready_format import Runner, decode_ready
from tidemill.timer.target import shard_directories, shard_of

_VIA = {Runner.EMBEDDED: Via.EMBEDDED, Runner.SPARK: Via.SPARK}


@dataclass(slots=True)
class _OpenFile:
    path: Path
    via: Via
    rows: Rows
    placements: U16
    taken: int = 0

    def rest(self) -> Rows:
        return self.rows[self.taken :]

    def first(self, count: int) -> Rows:
        """The next `count` rows, as the releaser holds them."""
        part = slice(self.taken, self.taken + count)
        rows = self.rows[part]
        return due_rows(rows["deliver_at_ms"], rows["seq"].astype(np.int64), self.via, self.placements[part])


class ReadyReader:
    """The ready files of one timer directory. Not thread-safe: the releaser's lock protects it."""

    def __init__(self, disk: Disk, timer_directory: Path, on_damage: Callable[[int, str], None]) -> None:
        """`on_damage` hears of a shard with a damaged file, and what is wrong with that."""
        self._disk = disk
        self._timer_directory = timer_directory
        self._open: dict[Path, _OpenFile] = {}
        self._damaged: set[Path] = set()
        self._on_damage = on_damage
        self._read: dict[Path, I64] = {}  # taken to the end, perhaps not settled: the seqs that were not

    @property
    def count(self) -> int:
        """Rows not taken yet."""
        return sum(len(file.rows) - file.taken for file in self._open.values())

    def look(self) -> None:
        """Find files that are new, and forget those that were removed."""
        present: set[Path] = set()
        for shard in shard_directories(self._disk, self._timer_directory):
            directory = shard / READY_DIRECTORY_NAME
            present.update(
                directory / name for name in self._disk.names(directory) if parse_ready_name(name) is not None
            )
        self._damaged &= present
        for path in present - self._open.keys() - self._read.keys() - self._damaged:
            self._adopt(path)
        for gone in (self._open.keys() | self._read.keys()) - present:
            self._open.pop(gone, None)
            self._read.pop(gone, None)

    def _adopt(self, path: Path) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return  # its shard was dropped while we looked
        try:
            header, rows, placements = decode_ready(file.map(file.size()).data)
        except (CorruptionError, NewerFormatError) as error:
            self._damaged.add(path)
            self._on_damage(shard_of(path.parent.parent), f"{path.name}: {error}")
            return
        finally:
            file.close()
        self._open[path] = _OpenFile(path, _VIA[header.runner], rows, placements)

    def next_due_ms(self) -> int | None:
        """The earliest due time of what was not taken yet; a look, which may come from any thread."""
        rests = [file.rest() for file in list(self._open.values())]
        return min((int(rest["deliver_at_ms"][0]) for rest in rests if len(rest)), default=None)

    def due_seqs(self, from_ms: int, until_ms: int) -> list[I64]:
        """Seqs of rows not taken yet and due in `[from, until]`, in parts; a look from any thread."""
        return [seqs_between(file.rest(), from_ms, until_ms) for file in list(self._open.values())]

    def take_due(self, now_ms: int, limit: int) -> Rows:
        """Rows due at or before `now_ms` that were not taken yet, in order; the earliest `limit` of them."""
        found: list[tuple[_OpenFile, Rows]] = []
        for file in self._open.values():
            rest = file.rest()
            due = rest[: min(limit, int(np.searchsorted(rest["deliver_at_ms"], now_ms, "right")))]
            if len(due):
                found.append((file, due))
        merged = joined([file.first(len(due)) for file, due in found])[:limit]
        if not len(merged):
            return NO_ROWS
        last_due, last_seq = int(merged["deliver_at_ms"][-1]), int(merged["seq"][-1])
        for file, due in found:
            before = due["deliver_at_ms"] < last_due
            same = (due["deliver_at_ms"] == last_due) & (due["seq"] <= last_seq)
            file.taken += int((before | same).sum())
        return merged

    def sweep(self, still_needed: Callable[[I64], Flags]) -> None:
        """Remove files that were taken to the end and whose rows are all settled or held elsewhere."""
        for path, file in list(self._open.items()):
            if file.taken == len(file.rows):
                self._read[path] = file.rows["seq"].astype(np.int64)
                del self._open[path]
        for path, seqs in list(self._read.items()):
            needed = seqs[still_needed(seqs)]
            if len(needed):
                self._read[path] = needed
            else:
                del self._read[path]
                self._disk.remove(path)


# Before which time every message that is due has been handed over; computed on request.
FifoSafe = Callable[[], int]


@dataclass(frozen=True, slots=True)
class ShardsSeen:
    """The result of one look at the shards' cursors.

    `fifo_safe` answers before which time they handed over everything, with the ready files that are there
    after the look. `have_moved`: since the look before, so that there may be new files. `unabsorbed`: how
    many entries the slowest shard has not read. `held_seq`: where absorbing is held, far entries from this
    seq on go only when the timer has handed them over, after a resume; None: it is not held.
    """

    fifo_safe: FifoSafe
    have_moved: bool
    unabsorbed: int = 0
    held_seq: int | None = None
