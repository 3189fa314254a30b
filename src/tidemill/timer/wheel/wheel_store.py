"""The default timer store: TimerLog and TimerWheel together.

Owns the order between the two files and their repair. A slot is written only after its units are synced,
so a slot that leads past the cursor's end proves that the units there are whole.
Leaves to others: the cursor (which says what counts), ready files.

Invariants:
- all slots with timers lie in [cursor tick, cursor open tick + roll window), less than one lap;
- a slot of an undrained tick is never overwritten: a step ends where its window stays within the lap;
- a row of the wheel leads to a unit of its own tick below the cursor's end, or is empty.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.log.arrays import I64, Flags
from tidemill.log.disk import Disk
from tidemill.timer.cursor import Cursor, StoreMark
from tidemill.timer.settings import TimerSettings
from tidemill.timer.stages.admit import Batch
from tidemill.timer.stages.link import Groups, group_by_slot, link
from tidemill.timer.stages.place import place
from tidemill.timer.timer_store import Drained
from tidemill.timer.wheel.chains import walk_chains
from tidemill.timer.wheel.timer_log import TimerLog
from tidemill.timer.wheel.timer_log_format import MAGIC_ROLL, NO_POSITION, Units, slot_ticks_of, whole_count
from tidemill.timer.wheel.wheel import Wheel
from tidemill.timer.wheel.wheel_format import SLOT, SLOT_COUNT_MAX, speaks_for

TIMER_LOG_NAME = "timer-log"
WHEEL_NAME = "wheel"

_NO_SEQS = np.empty(0, np.int64)
_NO_PLACEMENTS = np.empty(0, np.uint16)


class WheelStore:
    """Timers in a wheel. Implements `TimerStore`."""

    def __init__(self, disk: Disk, directory: Path, settings: TimerSettings) -> None:
        self._settings = settings
        self._log = TimerLog(disk, directory / TIMER_LOG_NAME, settings.segment_bytes)
        self._wheel = Wheel(disk, directory / WHEEL_NAME, settings.slots)
        self._wheel_synced = 0
        # The highest slot tick in each kept segment: when the cursor has passed it, the segment can go.
        self._segment_ticks: dict[int, int] = {}
        self._is_sound = False

    def truncate(self, cursor: Cursor) -> Cursor:
        end_index = self._log.layout.index_at(cursor.mark.log_end)
        if not self._is_sound or self._log.end_index != end_index:
            self._set_back(cursor, end_index)
        return cursor

    def _set_back(self, cursor: Cursor, end_index: int) -> None:
        mark = cursor.mark
        self._is_sound = False
        if self._wheel.is_new and mark.wheel_synced:
            raise CorruptionError("the wheel is missing or empty")
        self._segment_ticks = {mark.first_segment + i: tick for i, tick in enumerate(mark.segment_ticks)}
        self._wheel_synced = mark.wheel_synced
        self._log.drop_head(mark.first_segment)
        self._log.drop_torn_tail(end_index)
        self._log.require_no_gap()
        if not self._log.segments and end_index % self._log.layout.units_per_segment == 0:
            self._log.start_at(end_index)
        if self._log.end_index < end_index:
            raise CorruptionError("the TimerLog is shorter than its cursor says")
        self._apply_again(cursor, end_index)
        if self._log.end_index > end_index:
            self._take_back(end_index)
            # Slots first: were the units gone first, nothing would say which slots to set back.
            self._wheel.sync()
            self._log.cut(end_index)
        self._is_sound = True

    def due(self, cursor: Cursor, until_tick: int, due_max: int) -> Drained:
        settings = self._settings
        if cursor.next_due_tick is None:
            return Drained(_NO_SEQS, _NO_PLACEMENTS, until_tick, NO_POSITION)
        # Timers placed from the step's end reach a window further, and must not lap the oldest undrained.
        lap_end = cursor.next_due_tick + settings.slots - settings.roll_window_slots - 2
        until_tick = min(until_tick, lap_end)
        if cursor.next_due_tick >= until_tick:
            return Drained(_NO_SEQS, _NO_PLACEMENTS, until_tick, cursor.resume_position)

        from_tick = cursor.next_due_tick
        stop = min(until_tick, cursor.open_tick + settings.roll_window_slots)
        rows = self._wheel.read_range(from_tick, stop)
        ticks = np.arange(from_tick, stop, dtype=np.int64)
        pending = np.flatnonzero(speaks_for(rows, ticks))
        heads = rows["last_pos"][pending].astype(np.int64)
        if cursor.is_inside_slot and len(pending) and int(ticks[pending[0]]) == cursor.tick:
            heads[0] = cursor.resume_position
        running = np.cumsum(rows["num"][pending].astype(np.int64))
        fitting = int(np.searchsorted(running, due_max, side="right"))
        if fitting < len(pending):
            until_tick = int(ticks[pending[fitting]])
        if fitting or not len(pending):
            indexes, _ = walk_chains(self._log, heads[:fitting])
            return self._drained(indexes, until_tick, NO_POSITION)
        # One slot alone holds more than a step may hand over: take a part and come back for the rest.
        indexes, left = walk_chains(self._log, heads[:1], due_max)
        if len(left):
            return self._drained(indexes, until_tick, int(left[0]))
        return self._drained(indexes, until_tick + 1, NO_POSITION)

    def absorb(self, batch: Batch, open_tick: int) -> int | None:
        if not len(batch):
            return None
        tick_ms = self._settings.tick_ms
        placement = place(
            batch.entries["deliver_at_ms"], batch.seqs, open_tick, tick_ms, self._settings.roll_window_slots
        )
        groups = group_by_slot(placement.slot_ticks)
        held = self._wheel.read(groups.slot_ticks)
        first_index = self._log.end_index
        units, slots = link(groups, batch, placement, held, first_index, open_tick, tick_ms, self._log.layout)
        self._is_sound = False
        self._log.append(units)
        self._log.sync()
        self._wheel.write(groups.slot_ticks, slots)
        self._note_segments(groups, first_index)
        self._is_sound = True
        if self._log_end - self._wheel_synced >= self._settings.wheel_sync_bytes:
            self._wheel.sync()
            self._wheel_synced = self._log_end
        return int(groups.slot_ticks[0])

    def next_due(self, cursor: Cursor, from_tick: int) -> int | None:
        return self._wheel.next_pending(from_tick, cursor.open_tick + self._settings.roll_window_slots)

    def mark(self, tick: int) -> StoreMark:
        kept = [segment for segment in sorted(self._segment_ticks) if segment >= self._first_kept(tick)]
        ticks = tuple(self._segment_ticks[segment] for segment in kept)
        return StoreMark(self._log_end, self._wheel_synced, self._first_kept(tick), ticks)

    def commit(self, cursor: Cursor) -> None:
        """Nothing to do: units were synced before their slots were written, and the cursor's mark counts."""

    def drop_behind(self, tick: int) -> None:
        first_kept = self._first_kept(tick)
        for segment in [segment for segment in self._segment_ticks if segment < first_kept]:
            del self._segment_ticks[segment]
        self._log.drop_head(first_kept)

    def close(self) -> None:
        self._log.close()
        self._wheel.close()

    @property
    def _log_end(self) -> int:
        return self._log.layout.position_of(self._log.end_index)

    def _first_kept(self, tick: int) -> int:
        """The first segment with a slot at or after `tick`; all after it stay too, so there is no gap."""
        open_segment = self._log_end // self._settings.segment_bytes
        return min((s for s, highest in self._segment_ticks.items() if highest >= tick), default=open_segment)

    def _drained(self, indexes: I64, tick: int, resume_position: int) -> Drained:
        """The timers of units."""
        # In log order the units lie closer together, and so do the entries they lead to.
        indexes.sort()
        placements, magic = self._log.placements_and_magic(indexes)
        seqs, frames = self._log.seqs(indexes), self._log.frames(indexes)
        return Drained(seqs, placements, tick, resume_position, frames, magic & MAGIC_ROLL != 0)

    def _note_segments(self, groups: Groups, first_index: int) -> None:
        """Raise the highest tick of each segment the new units went into."""
        per_segment = self._log.layout.units_per_segment
        ends = groups.starts + groups.counts
        for segment in range(first_index // per_segment, (self._log.end_index - 1) // per_segment + 1):
            # Units are in slot order, so the last one in the segment has its highest tick.
            last_row = min((segment + 1) * per_segment, self._log.end_index) - first_index - 1
            highest = int(groups.slot_ticks[np.searchsorted(ends, last_row, side="right")])
            self._segment_ticks[segment] = max(highest, self._segment_ticks.get(segment, highest))

    def _apply_again(self, cursor: Cursor, end_index: int) -> None:
        """Write the slots again that a power cut may have lost: those of units since the wheel's sync."""
        first_index = max(self._log.layout.index_at(cursor.mark.wheel_synced), self._log.start_index)
        units = self._log.read(first_index, end_index)
        if whole_count(units) < len(units):
            raise CorruptionError("the TimerLog has a broken unit below its cursor")
        ticks = slot_ticks_of(units, self._settings.tick_ms)
        pending = ticks >= cursor.tick
        if not pending.any():
            return
        if int(ticks.max()) >= cursor.open_tick + self._settings.roll_window_slots:
            raise CorruptionError("the TimerLog has a unit beyond the roll window")
        positions = self._log.layout.positions_from(first_index, len(units))[pending]
        prev_pos = units["prev_pos"][pending].astype(np.int64)
        groups = group_by_slot(ticks[pending])
        firsts = groups.order[groups.starts]
        lasts = groups.order[groups.starts + groups.counts - 1]
        rows = self._wheel.read(groups.slot_ticks)
        is_older = prev_pos[firsts] != NO_POSITION
        if (is_older & ~speaks_for(rows, groups.slot_ticks)).any():
            raise CorruptionError("the wheel has lost a slot that was synced")
        slots = np.zeros(len(rows), SLOT)
        slots["time"] = groups.slot_ticks
        slots["first_pos"] = np.where(is_older, rows["first_pos"], positions[firsts])
        slots["last_pos"] = positions[lasts]
        # How many of these the row already counts follows from where it ends; it is a hint in any case.
        counted = rows["last_pos"][np.repeat(np.arange(len(rows)), groups.counts)] >= positions[groups.order]
        uncounted = groups.counts - np.add.reduceat(counted.astype(np.int64), groups.starts)
        older = np.clip(rows["num"].astype(np.int64) + uncounted, groups.counts, SLOT_COUNT_MAX)
        slots["num"] = np.where(is_older, older, groups.counts)
        self._wheel.write(groups.slot_ticks, slots)

    def _take_back(self, end_index: int) -> None:
        """Set every slot of the units from `end_index` on to what it held before them."""
        units = self._log.read(end_index, self._log.end_index)
        # After the first torn unit nothing was synced, so no slot was written for it either.
        units = units[: whole_count(units)]
        ticks = slot_ticks_of(units, self._settings.tick_ms)
        if not len(ticks):
            return
        if int(ticks.max()) - int(ticks.min()) >= self._settings.slots:
            raise CorruptionError("the TimerLog has units further apart than a lap")
        groups = group_by_slot(ticks)
        rows = self._wheel.read(groups.slot_ticks)
        is_whole = self._leads_home(rows["last_pos"].astype(np.int64), groups.slot_ticks, end_index)
        touched = (rows["time"] == groups.slot_ticks) & ~(is_whole & (rows["num"] > 0))
        prev_pos = units["prev_pos"][groups.order[groups.starts]].astype(np.int64)
        is_older = self._leads_home(prev_pos, groups.slot_ticks, end_index)
        restored = np.zeros(len(rows), SLOT)
        for name in ("time", "first_pos"):
            restored[name] = np.where(is_older, rows[name], 0)
        restored["last_pos"] = np.where(is_older, prev_pos, 0)
        left = np.maximum(rows["num"].astype(np.int64) - groups.counts, 1)
        restored["num"] = np.where(is_older, left, 0)
        self._wheel.write(groups.slot_ticks[touched], restored[touched])

    def _leads_home(self, positions: I64, ticks: I64, end_index: int) -> Flags:
        """Which positions are those of a unit below `end_index` with the tick beside it."""
        indexes = self._log.layout.indexes_at(positions)
        known = (indexes >= self._log.start_index) & (indexes < end_index)
        units: Units = self._log.take(indexes[known])
        known[known] = slot_ticks_of(units, self._settings.tick_ms) == ticks[known]
        return known
