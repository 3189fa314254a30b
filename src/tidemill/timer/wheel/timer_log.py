"""The TimerLog: every timer ever put into the wheel of one shard, in segments of 52-byte units.

Owns the segment files, named by the position of their first byte in 20 digits. Appends, cuts at the end,
drops whole segments at the head, and reads units by index through read-only maps.
Leaves to others: what a unit means, where the valid end is (the cursor knows).

Invariants:
- only the last segment is open for appending; every other one is full and closed by a blank unit;
- an index is readable from the moment `append` returns, durable only after `sync`;
- no read map outlives a cut of its segment.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import CorruptionError
from tidemill.log.arrays import I64, U8, U16
from tidemill.log.disk import Disk, DiskFile
from tidemill.timer.wheel.timer_log_format import (
    FRAME_OFFSET,
    MAGIC_BITS,
    MAGIC_DEFAULT,
    PREV_POS_OFFSET,
    SEQ_OFFSET,
    STATE_OFFSET,
    UNIT,
    UNIT_BYTES,
    SegmentLayout,
    Units,
    encode_blank,
)

_PREV_POS = struct.Struct(">q")

Number = TypeVar("Number", bound=np.integer[Any])


class TimerLog:
    """Units by index. One user at a time, under the shard's lock."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self.layout = SegmentLayout(segment_bytes)
        self._disk = disk
        self._directory = directory
        self._files: dict[int, DiskFile] = {}
        self._maps: dict[int, U8] = {}
        self._dirty: set[int] = set()
        disk.make_dir(directory)
        self._segments = sorted(int(name) // segment_bytes for name in disk.names(directory))
        # A process that was killed may have made these names without making them safe.
        self._name_is_new = bool(self._segments)
        self._end_index = self._found_end()

    @property
    def end_index(self) -> int:
        """One past the last unit in the files, valid or not."""
        return self._end_index

    @property
    def start_index(self) -> int:
        """The first unit that is still kept."""
        return self._segments[0] * self._per_segment if self._segments else self._end_index

    @property
    def segments(self) -> list[int]:
        return list(self._segments)

    def start_at(self, index: int) -> None:
        """Begin an empty log at `index`, the first of a segment."""
        assert not self._segments
        assert index % self._per_segment == 0
        self._end_index = index

    def require_no_gap(self) -> None:
        """Raise `CorruptionError` if a segment is missing between two others."""
        segments = self._segments
        if segments and segments != list(range(segments[0], segments[-1] + 1)):
            raise CorruptionError(f"{self._directory}: a TimerLog segment is missing in the middle")

    def drop_torn_tail(self, valid_end_index: int) -> None:
        """Remove segments behind one that a power cut left short; such an append was never synced."""
        segment = valid_end_index // self._per_segment
        while segment in self._segments and self._unit_count(segment) == self._per_segment:
            segment += 1
        for later in [s for s in self._segments if s > segment]:
            self._remove(later)
            self._name_is_new = True
        self._end_index = self._found_end()

    def append(self, units: Units) -> None:
        """Put `units` at the end. Raises `DiskFullError` with any part of them written."""
        done = 0
        while done < len(units):
            segment, row = divmod(self._end_index, self._per_segment)
            part = units[done : done + self._per_segment - row]
            file = self._open(segment, create=True)
            self._dirty.add(segment)
            file.write(row * UNIT_BYTES, part.view(np.uint8).data)
            if row + len(part) == self._per_segment:
                file.write(self._per_segment * UNIT_BYTES, encode_blank(self.layout.segment_bytes))
            self._end_index += len(part)
            done += len(part)

    def sync(self) -> None:
        """Make every unit appended and every cut so far survive a power cut."""
        for segment in sorted(self._dirty):
            self._open(segment).sync()
        self._dirty.clear()
        if self._name_is_new:
            self._disk.sync_dir(self._directory)
            self._name_is_new = False

    def cut(self, end_index: int) -> None:
        """Forget units from `end_index` on, durably."""
        assert end_index <= self._end_index
        segment, row = divmod(end_index, self._per_segment)
        for later in [s for s in self._segments if s > segment or (s == segment and row == 0)]:
            self._remove(later)
            self._name_is_new = True
        if segment in self._segments:
            self._maps.pop(segment, None)
            self._open(segment).truncate(row * UNIT_BYTES)
            self._dirty.add(segment)
        self._end_index = end_index
        self.sync()

    def drop_head(self, first_segment: int) -> None:
        """Remove segments before `first_segment`; a power cut may bring them back, which is harmless."""
        for segment in [s for s in self._segments if s < first_segment]:
            self._remove(segment)

    def read(self, first_index: int, end_index: int) -> Units:
        """A copy of the units `[first_index, end_index)`."""
        units = np.empty(max(0, end_index - first_index), UNIT)
        data = units.view(np.uint8)
        done = 0
        while done < len(units):
            segment, row = divmod(first_index + done, self._per_segment)
            count = min(len(units) - done, self._per_segment - row)
            mapped = self._mapped(segment, row + count)
            data[done * UNIT_BYTES : (done + count) * UNIT_BYTES] = mapped[
                row * UNIT_BYTES : (row + count) * UNIT_BYTES
            ]
            done += count
        return units

    def take(self, indexes: I64) -> Units:
        """A copy of the units at `indexes`, in that order."""
        units = np.empty(len(indexes), UNIT)
        for segment, chosen, rows in self._by_segment(indexes):
            mapped = self._mapped(segment, int(rows.max()) + 1)
            whole = len(mapped) // UNIT_BYTES * UNIT_BYTES
            units[chosen] = mapped[:whole].view(UNIT).take(rows)
        return units

    def prev_positions(self, indexes: I64) -> I64:
        """The prev_pos of the units at `indexes`; cheaper than taking them whole."""
        return self._column(indexes, PREV_POS_OFFSET, np.int64)

    def seqs(self, indexes: I64) -> I64:
        """The seqs of the units at `indexes`."""
        return self._column(indexes, SEQ_OFFSET, np.int64)

    def frames(self, indexes: I64) -> I64:
        """The log offsets of the frames that hold the messages of the timers at `indexes`."""
        return self._column(indexes, FRAME_OFFSET, np.int64)

    def trips_and_magic(self, indexes: I64) -> tuple[U16, U16]:
        """How often the timers at `indexes` were placed, and their magic bits.

        Raises `CorruptionError` where these cannot be the bits of a timer.
        """
        states = self._column(indexes, STATE_OFFSET, np.uint32)
        magic = states.astype(np.uint16)
        every, some = int(np.bitwise_and.reduce(magic)), int(np.bitwise_or.reduce(magic))
        if len(magic) and (not every & MAGIC_DEFAULT or some & ~MAGIC_BITS):
            raise CorruptionError(f"{self._directory}: a unit has a wrong magic")
        return (states >> 16).astype(np.uint16), magic

    def follow(self, position: int, units_max: int) -> tuple[list[int], int]:
        """Positions along one chain from `position` back, at most `units_max`, and where to go on.

        One link at a time: for the few long chains whose units are scattered, where nothing is known
        before the link is read, this is the fastest there is.
        """
        positions: list[int] = []
        append, unpack = positions.append, _PREV_POS.unpack_from
        while position >= 0 and len(positions) < units_max:
            segment, offset = divmod(position, self.layout.segment_bytes)
            if offset % UNIT_BYTES:
                raise CorruptionError(f"{self._directory}: a chain leads between two units, to {position}")
            mapped = self._mapped(segment, offset // UNIT_BYTES + 1).data
            start = position - offset
            shift = start - PREV_POS_OFFSET
            for _ in range(units_max - len(positions)):
                append(position)
                prev_pos = unpack(mapped, position - shift)[0]
                if prev_pos >= position:
                    raise CorruptionError(f"{self._directory}: a chain runs forward at position {position}")
                position = prev_pos
                if position < start:
                    break
        return positions, position

    def close(self) -> None:
        self._maps.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def _per_segment(self) -> int:
        return self.layout.units_per_segment

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment * self.layout.segment_bytes:020d}"

    def _found_end(self) -> int:
        if not self._segments:
            return 0
        last = self._segments[-1]
        return last * self._per_segment + self._unit_count(last)

    def _unit_count(self, segment: int) -> int:
        return min(self._open(segment).size() // UNIT_BYTES, self._per_segment)

    def _open(self, segment: int, *, create: bool = False) -> DiskFile:
        file = self._files.get(segment)
        if file is None:
            if create and segment not in self._segments:
                self._segments.append(segment)
                self._name_is_new = True
            file = self._files[segment] = self._disk.open(self._path(segment), create=create)
        return file

    def _remove(self, segment: int) -> None:
        self._maps.pop(segment, None)
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()
        self._dirty.discard(segment)
        self._segments.remove(segment)
        self._disk.remove(self._path(segment))

    def _mapped(self, segment: int, unit_count: int) -> U8:
        """A map of a segment that covers at least its first `unit_count` units."""
        mapped = self._maps.get(segment)
        if mapped is None or len(mapped) < unit_count * UNIT_BYTES:
            if segment not in self._segments:
                raise CorruptionError(f"{self._directory}: a chain leads into missing segment {segment}")
            file = self._open(segment)
            mapped = self._maps[segment] = file.map(file.size())
            if len(mapped) < unit_count * UNIT_BYTES:
                raise CorruptionError(f"{file.path}: a chain leads past the end")
        return mapped

    def _column(self, indexes: I64, field_offset: int, kind: type[Number]) -> npt.NDArray[Number]:
        """One field of the units at `indexes`."""
        values = np.empty(len(indexes), kind)
        stored = values.dtype.newbyteorder(">")
        for segment, chosen, rows in self._by_segment(indexes):
            mapped = self._mapped(segment, int(rows.max()) + 1)
            count = len(mapped) // UNIT_BYTES
            column = np.ndarray((count,), stored, mapped, field_offset, (UNIT_BYTES,))
            values[chosen] = column[rows]
        return values

    def _by_segment(self, indexes: I64) -> list[tuple[int, slice | I64, I64]]:
        """(segment, which of `indexes`, rows in it) for each segment that is touched."""
        if not len(indexes):
            return []
        segments = indexes // self._per_segment
        low, high = int(segments.min()), int(segments.max())
        if low == high:
            return [(low, slice(None), indexes - low * self._per_segment)]
        groups: list[tuple[int, slice | I64, I64]] = []
        for segment in np.unique(segments).tolist():
            chosen = np.flatnonzero(segments == segment)
            groups.append((segment, chosen, indexes[chosen] - segment * self._per_segment))
        return groups
