"""The wheel as three dials, like the hands of a clock: what waits in its slots.

Owns what the dials show. The first is a minute, the second an hour, the third the whole roll window; each is
cut into equal sectors, and a sector's load is what its slots hold from now on. A sector that the hand has
passed already shows the next turn, as on a wheel that goes round.

A slot counts what was placed in it: also what was cancelled or moved since, and what is placed again when the
slot comes because it is due later. The due counts say how many messages are pending in each minute. Where
the slots of a minute hold more, each is counted in proportion, so that no minute shows more than is pending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.core.limits import MINUTE_MS
from tidemill.log.arrays import I64
from tidemill.timer.cursor import Cursor
from tidemill.timer.settings import TimerSettings
from tidemill.timer.wheel.wheel_view import WheelView

_SECTORS = 60
_WINDOW_SECTORS = 96
_HOUR_MS = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Dial:
    """`loads[i]` is what falls due in the sector that begins at `i * sector_ms` of each turn."""

    turn_ms: int
    sector_ms: int
    loads: I64


@dataclass(frozen=True, slots=True)
class ShardPosition:
    drained_to_ms: int  # everything before this is handed over
    absorbed_seq: int
    step: int


@dataclass(frozen=True, slots=True)
class WheelPicture:
    now_ms: int
    has_wheel: bool
    tick_ms: int
    slots: int
    window_slots: int
    timers: int  # pending in the slots from now on
    filled_slots: int
    fullest: int
    fullest_at_ms: int | None
    shards: list[ShardPosition]
    dials: list[Dial]


class WheelPictures:
    """Draws the wheel from its files. Thread-safe."""

    def __init__(
        self,
        view: WheelView,
        settings: TimerSettings,
        cursors: Callable[[], tuple[Cursor, ...]],
        now_ms: Callable[[], int],
        pending_by_minute: Callable[[int, int], dict[int, int]],
    ) -> None:
        """`pending_by_minute` gives the pending messages of each minute from the first up to the second."""
        self._view = view
        self._settings = settings
        self._cursors = cursors
        self._now_ms = now_ms
        self._pending_by_minute = pending_by_minute

    def picture(self) -> WheelPicture:
        """The dials as of now. Reads the slots and the due counts of one roll window."""
        now_ms, settings = self._now_ms(), self._settings
        tick_ms, window_ms = settings.tick_ms, settings.roll_window_slots * settings.tick_ms
        first = now_ms // tick_ms
        slots = self._view.counts(first, first + settings.roll_window_slots)
        counts = self._pending(slots, first)
        fullest = int(counts.argmax()) if len(counts) else 0
        turns = [(MINUTE_MS, _SECTORS), (_HOUR_MS, _SECTORS), (window_ms, _WINDOW_SECTORS)]
        return WheelPicture(
            now_ms=now_ms,
            has_wheel=self._view.has_wheel,
            tick_ms=tick_ms,
            slots=settings.slots,
            window_slots=settings.roll_window_slots,
            timers=int(counts.sum()),
            filled_slots=int(np.count_nonzero(counts)),
            fullest=int(counts[fullest]),
            fullest_at_ms=(first + fullest) * tick_ms if counts[fullest] else None,
            shards=[ShardPosition(c.tick * tick_ms, c.seq, c.step) for c in self._cursors()],
            dials=[_dial(counts, first, tick_ms, turn_ms, sectors) for turn_ms, sectors in turns],
        )

    def slots_until(self, until_ms: int) -> I64:
        """How many messages are pending in each slot from now until then, at most one roll window of them;
        none where the timer store has no wheel."""
        if not self._view.has_wheel:
            return np.empty(0, np.int64)
        settings = self._settings
        first, end = self._now_ms() // settings.tick_ms, -(-until_ms // settings.tick_ms)
        slots = self._view.counts(first, min(end, first + settings.roll_window_slots))
        return self._pending(slots, first) if len(slots) else slots

    def _pending(self, slots: I64, first_tick: int) -> I64:
        """What is pending of each slot's count."""
        ticks = np.arange(first_tick, first_tick + len(slots), dtype=np.int64)
        minutes = ticks * self._settings.tick_ms // MINUTE_MS
        first = int(minutes[0])
        pending = np.zeros(int(minutes[-1]) - first + 1, np.int64)
        for minute, count in self._pending_by_minute(first, first + len(pending)).items():
            pending[minute - first] = count
        return _at_most(slots, minutes - first, pending)


def _at_most(counts: I64, parts: I64, limits: I64) -> I64:
    """Lower counts in proportion where those of a part add up to more than its limit. `parts` ascends."""
    totals = np.bincount(parts, counts, minlength=len(limits)).astype(np.int64)
    scale = np.minimum(1.0, limits / np.maximum(totals, 1))[parts]
    # Rounding the running sum keeps the sum of a part, which rounding each count would not.
    before = np.concatenate(([0], np.cumsum(totals)))[parts]
    running = (np.cumsum(counts) - before) * scale
    exact = np.rint(running).astype(np.int64)
    starts = np.flatnonzero(np.diff(parts, prepend=-1))
    lowered = np.diff(exact, prepend=0)
    lowered[starts] = exact[starts]
    return lowered


def _dial(counts: I64, first_tick: int, tick_ms: int, turn_ms: int, sectors: int) -> Dial:
    """The next turn of a dial, by sector; ticks beyond what was read count as empty."""
    turn_ticks = min(turn_ms // tick_ms, len(counts))
    sector_ms = turn_ms // sectors
    ticks = np.arange(first_tick, first_tick + turn_ticks, dtype=np.int64)
    sector = ticks * tick_ms % turn_ms // sector_ms
    # A turn that does not divide evenly leaves a narrow last sector; it is shown with its neighbour.
    loads = np.bincount(np.minimum(sector, sectors - 1), counts[:turn_ticks], minlength=sectors)
    return Dial(turn_ms, sector_ms, loads.astype(np.int64))
