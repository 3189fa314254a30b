"""The TimerLog: every timer ever put into the wheel of one shard, in segments of 52-byte units.

A table of rows (`log/row_table.py`) whose files are named by the position of their first byte in 20 digits,
and end with a blank unit. Appends, cuts at the end, drops whole segments at the head, reads units by index.
Leaves to others: what a unit means, where the valid end is (the cursor knows).

Invariants:
- only the last segment is open for appending; every other one is full and closed by a blank unit;
- an index is readable from the moment `append` returns, durable only after `sync`;
- no read map outlives a cut of its segment.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError, StorageError
from tidemill.log.arrays import I64, U16, Rows, plain
from tidemill.log.disk import Disk
from tidemill.log.row_table import RowTable
from tidemill.timer.wheel.timer_log_format import (
    COLUMNS,
    MAGIC_BITS,
    MAGIC_DEFAULT,
    PREV_POS_OFFSET,
    UNIT,
    UNIT_BYTES,
    SegmentLayout,
    Units,
    encode_blank,
)

_PREV_POS = struct.Struct(">q")


class TimerLog(RowTable):
    """Units by index. One user at a time, under the shard's lock."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self.layout = SegmentLayout(segment_bytes)
        self._per_segment = self.layout.units_per_segment
        super().__init__(
            disk, directory, UNIT, self._per_segment, make_room=lambda: False, name_step=segment_bytes
        )
        # One past the last unit in the files, valid or not.
        self.end_index = self._found_end()

    @property
    def start_index(self) -> int:
        """The first unit that is still kept."""
        return min(self._chunks) * self._per_segment if self._chunks else self.end_index

    @property
    def segments(self) -> list[int]:
        return sorted(self._chunks)

    def start_at(self, index: int) -> None:
        """Begin an empty log at `index`, the first of a segment."""
        assert not self._chunks
        assert index % self._per_segment == 0
        self.end_index = index

    def require_no_gap(self) -> None:
        """Raise `CorruptionError` if a segment is missing between two others."""
        segments = self.segments
        if segments and segments != list(range(segments[0], segments[-1] + 1)):
            raise CorruptionError(f"{self._directory}: a TimerLog segment is missing in the middle")

    def drop_torn_tail(self, valid_end_index: int) -> None:
        """Remove segments behind one that a power cut left short; such an append was never synced."""
        segment = valid_end_index // self._per_segment
        while segment in self._chunks and self._unit_count(segment) == self._per_segment:
            segment += 1
        for later in [s for s in self._chunks if s > segment]:
            self._drop(later)
            self._name_is_new = True
        self.end_index = self._found_end()

    def append(self, units: Units) -> None:
        """Put `units` at the end. Raises `DiskFullError` with any part of them written."""
        done = 0
        while done < len(units):
            segment, row = divmod(self.end_index, self._per_segment)
            part = units[done : done + self._per_segment - row]
            self.write(self.end_index, part)
            if row + len(part) == self._per_segment:
                blank = encode_blank(self.layout.segment_bytes)
                self._file(segment, create=True).write(self._per_segment * UNIT_BYTES, blank)
            self.end_index += len(part)
            done += len(part)

    def sync(self) -> None:
        """Make every unit appended and every cut so far survive a power cut."""
        begun = self.begin_sync()
        try:
            begun.run()
        except StorageError:
            self.undo_sync(begun)
            raise

    def cut(self, end_index: int) -> None:
        """Forget units from `end_index` on, durably."""
        assert end_index <= self.end_index
        before = set(self._chunks)
        self.cut_tail(end_index)
        self._name_is_new = self._name_is_new or before != self._chunks
        self._dirty |= {end_index // self._per_segment} & self._chunks
        self.end_index = end_index
        self.sync()

    def drop_head(self, first_segment: int) -> None:
        """Remove segments before `first_segment`; a power cut may bring them back, which is harmless."""
        self.cut_head(first_segment * self._per_segment)

    def read(self, first_index: int, end_index: int) -> Units:
        """A copy of the units `[first_index, end_index)`."""
        return plain(super().read(first_index, end_index)).copy().view(UNIT)

    def prev_positions(self, indexes: I64) -> I64:
        """The prev_pos of the units at `indexes`; cheaper than taking them whole."""
        return self._column(indexes, "prev_pos")

    def seqs(self, indexes: I64) -> I64:
        """The seqs of the units at `indexes`."""
        return self._column(indexes, "seq")

    def frames(self, indexes: I64) -> I64:
        """The log offsets of the frames that hold the messages of the timers at `indexes`."""
        return self._column(indexes, "offset")

    def placements_and_magic(self, indexes: I64) -> tuple[U16, U16]:
        """How often the timers at `indexes` were placed, and their magic bits.

        Raises `CorruptionError` where these cannot be the bits of a timer.
        """
        states = self._column(indexes, "state")
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
            mapped = self._rows(segment, offset // UNIT_BYTES + 1).view(np.uint8).data
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

    def _found_end(self) -> int:
        last = max(self._chunks, default=None)
        return 0 if last is None else last * self._per_segment + self._unit_count(last)

    def _unit_count(self, segment: int) -> int:
        return min(self._file(segment, create=False).size() // UNIT_BYTES, self._per_segment)

    def _made_longer(self, rows: Rows, chunk: int, count: int) -> Rows:
        """Nothing stands for units that are not there."""
        if chunk not in self._chunks:
            raise CorruptionError(f"{self._directory}: a chain leads into missing segment {chunk}")
        raise CorruptionError(f"{self.path_of(chunk * self._per_segment)}: a chain leads past the end")

    def _column(self, indexes: I64, name: str) -> Rows:
        """One field of the units at `indexes`."""
        values = np.empty(len(indexes), COLUMNS[name].newbyteorder("="))
        for segment, chosen, rows in self._by_chunk(indexes):
            values[chosen] = self._rows(segment, int(rows.max()) + 1).view(COLUMNS)[name][rows]
        return values
