"""What must hold in a timer directory, checked from the files alone.

Owns the invariants between TimerLog, wheel, cursor and ready files of a shard; those of RocksDB are in
`rocks_check.py`. Reads, never repairs, takes
no lock: use it where no step is running.
Leaves to others: whether every pending message is there at all (the ledger knows which are pending).

Invariant: a shard that was left in order, by a step or by an opening, has no findings. After a crash call
it with `is_crashed`: then it keeps to what no crash may break.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.log.arrays import I64
from tidemill.log.disk import Disk
from tidemill.timer.cursor import Cursor
from tidemill.timer.ready_files import ReadyFiles
from tidemill.timer.rocksdb.rocks_check import check_rocks
from tidemill.timer.settings import StoreKind, TimerSettings
from tidemill.timer.shard_header import decode_header, read_header
from tidemill.timer.stages.link import group_by_slot
from tidemill.timer.target import read_cursor, shard_directories
from tidemill.timer.wheel.timer_log import TimerLog
from tidemill.timer.wheel.timer_log_format import NO_POSITION, Units, slot_ticks_of, whole_count
from tidemill.timer.wheel.wheel import Wheel
from tidemill.timer.wheel.wheel_format import speaks_for
from tidemill.timer.wheel.wheel_store import TIMER_LOG_NAME, WHEEL_NAME


def check_timer(disk: Disk, timer_directory: Path, *, is_crashed: bool = False) -> list[str]:
    """Findings over all shards, one line each; empty when all is well."""
    return [
        f"{directory.name}: {finding}"
        for directory in shard_directories(disk, timer_directory)
        for finding in check_shard(disk, directory, is_crashed=is_crashed)
    ]


def check_shard(disk: Disk, directory: Path, *, is_crashed: bool = False) -> list[str]:
    """Findings in one shard directory."""
    header, cursor = read_header(disk, directory), read_cursor(disk, directory)
    if header is None or cursor is None:
        # The engine makes such a shard anew, so after a crash this is no harm done.
        return [] if is_crashed else ["header or cursor is missing"]
    settings, shard = decode_header(header)
    try:
        findings = list(_check_cursor(cursor))
        if settings.store is StoreKind.ROCKSDB:
            findings += check_rocks(disk, directory, settings, shard, cursor, is_crashed=is_crashed)
        else:
            findings += _check_files(disk, directory, settings, cursor, is_crashed)
    except CorruptionError as error:
        return [str(error)]
    return findings + list(_check_ready(disk, directory))


def _check_files(
    disk: Disk, directory: Path, settings: TimerSettings, cursor: Cursor, is_crashed: bool
) -> Iterator[str]:
    for name in (TIMER_LOG_NAME, WHEEL_NAME):
        if not disk.exists(directory / name):
            yield f"{name} is missing"
            return
    with (
        closing(TimerLog(disk, directory / TIMER_LOG_NAME, settings.segment_bytes)) as log,
        closing(Wheel(disk, directory / WHEEL_NAME, settings.slots)) as wheel,
    ):
        yield from _check_chains(log, wheel, settings, cursor, is_crashed)


def _check_cursor(cursor: Cursor) -> Iterator[str]:
    if cursor.next_due_tick is not None and cursor.next_due_tick < cursor.tick:
        yield f"the next due tick {cursor.next_due_tick} is before the tick {cursor.tick}"
    if cursor.mark.wheel_synced > cursor.mark.log_end:
        yield "the wheel is said to be synced beyond the TimerLog's end"
    if cursor.is_inside_slot and cursor.next_due_tick != cursor.tick:
        yield "a slot is drained in part but is not the next due"


def _check_chains(
    log: TimerLog, wheel: Wheel, settings: TimerSettings, cursor: Cursor, is_crashed: bool
) -> Iterator[str]:
    """Every pending unit hangs in the chain of its slot, and every chain holds nothing else."""
    end_index = log.layout.index_at(cursor.mark.log_end)
    per_segment = log.layout.units_per_segment
    if log.end_index > end_index and log.segments and not is_crashed:
        yield "the TimerLog is longer than the cursor says"
    # Dropped segments may come back after a power cut, and an append that was cut short may leave some.
    kept = [s for s in log.segments if cursor.mark.first_segment <= s <= (end_index - 1) // per_segment]
    first = kept[0] if kept else -(-end_index // per_segment)
    if kept != list(range(first, -(-end_index // per_segment))):
        yield "a TimerLog segment is missing"
        return
    start_index = min(first * per_segment, end_index)
    units = log.read(start_index, end_index)
    if whole_count(units) < len(units):
        yield f"the TimerLog has a broken unit at index {start_index + whole_count(units)}"
        return
    ticks = slot_ticks_of(units, settings.tick_ms)
    yield from _check_segments(log, cursor, ticks, start_index)
    pending = np.flatnonzero(ticks >= cursor.tick)
    positions = log.layout.positions_from(start_index, len(units))[pending]
    yield from _check_pending(units[pending], ticks[pending], positions, settings, cursor)
    yield from _check_slots(units[pending], ticks[pending], positions, wheel, settings, cursor, is_crashed)


def _check_segments(log: TimerLog, cursor: Cursor, ticks: I64, start_index: int) -> Iterator[str]:
    mark, per_segment = cursor.mark, log.layout.units_per_segment
    for at, highest in enumerate(mark.segment_ticks):
        first = (mark.first_segment + at) * per_segment - start_index
        held = ticks[max(0, first) : max(0, first + per_segment)]
        if len(held) and int(held.max()) != highest:
            yield f"segment {mark.first_segment + at} reaches tick {held.max()}, the cursor says {highest}"


def _check_pending(
    units: Units, ticks: I64, positions: I64, settings: TimerSettings, cursor: Cursor
) -> Iterator[str]:
    waiting = ~((ticks == cursor.tick) & (positions > cursor.resume_position) & cursor.is_inside_slot)
    next_due = int(ticks[waiting].min()) if waiting.any() else None
    if next_due != cursor.next_due_tick:
        yield f"the next due tick is {next_due}, the cursor says {cursor.next_due_tick}"
    seqs = units["seq"].astype(np.int64)
    if len(seqs) and int(seqs.max()) >= cursor.seq:
        yield f"seq {seqs.max()} is in the TimerLog but not absorbed by the cursor at {cursor.seq}"
    if (np.diff(np.sort(seqs[waiting])) == 0).any():  # for millions far quicker than `np.unique`
        yield "a seq waits twice"
    if len(ticks) and int(ticks.max()) >= cursor.open_tick + settings.roll_window_slots:
        yield f"slot {ticks.max()} lies beyond the roll window"


def _check_slots(
    units: Units,
    ticks: I64,
    positions: I64,
    wheel: Wheel,
    settings: TimerSettings,
    cursor: Cursor,
    is_crashed: bool,
) -> Iterator[str]:
    groups = group_by_slot(ticks)
    ordered = positions[groups.order]
    expected = np.concatenate(([NO_POSITION], ordered[:-1])) if len(ordered) else ordered
    expected[groups.starts] = NO_POSITION
    wrong = np.flatnonzero(units["prev_pos"][groups.order] != expected)
    if len(wrong):
        yield f"{len(wrong)} units are chained wrongly, the first at position {ordered[wrong[0]]}"
    if is_crashed:
        return  # slots may be behind or ahead of the cursor; opening sets them right
    rows = wheel.read(groups.slot_ticks)
    for name, held in (
        ("first_pos", ordered[groups.starts]),
        ("last_pos", ordered[groups.starts + groups.counts - 1]),
    ):
        off = np.flatnonzero(~speaks_for(rows, groups.slot_ticks) | (rows[name] != held))
        if len(off):
            yield f"{len(off)} slots have a wrong {name}, the first for tick {groups.slot_ticks[off[0]]}"
    window = np.arange(cursor.tick, cursor.tick + min(settings.slots, settings.roll_window_slots + 1))
    speaking = window[speaks_for(wheel.read_range(int(window[0]), int(window[-1]) + 1), window)]
    idle = np.setdiff1d(speaking, groups.slot_ticks)
    if len(idle):
        yield f"{len(idle)} slots lead to no unit, the first for tick {idle[0]}"


def _check_ready(disk: Disk, directory: Path) -> Iterator[str]:
    ready = ReadyFiles(disk, directory)
    for name in ready.names():
        try:
            _, rows, _ = ready.read(name)
        except (CorruptionError, NewerFormatError) as error:
            yield f"{name}: {error}"
            continue
        due, seqs = rows["deliver_at_ms"], rows["seq"]
        in_order = (due[1:] > due[:-1]) | ((due[1:] == due[:-1]) & (seqs[1:] > seqs[:-1]))
        if not in_order.all():
            yield f"{name}: rows are not sorted"
