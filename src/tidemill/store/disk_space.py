"""How much space the disk has left, and a log line before that is too little.

Owns the two lines that free space may fall below. Below the *refusal line* the log's next segment, with
what is kept back beside it, finds no space: sends are refused once the present segment is full. Below the
*warning line*, which is higher, a log line warns, and `status`, `/healthz` and the metrics say so.

Invariant: the warning comes before the first refusal. A disk can fill within seconds, so it is looked at
again not only when time has passed (`look`, from the broker's upkeep) but as soon as what was written since
the last look could have carried it over the warning line (`reserve`, before every frame of sends: one
comparison of two numbers), and once more when a send is about to be refused: another process may have filled
the disk.

Owns also the word that the directory is gone: removed, renamed or unmounted under an open broker, which goes
on in files that no path leads to. Sends are refused then, until it is back: what could not be
found after a restart is not taken.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import DiskFullError
from tidemill.core.limits import MIB
from tidemill.log.disk import Disk
from tidemill.log.segments import SegmentedLog
from tidemill.store.upkeep.ballast import BALLAST_BYTES, Ballast

logger = logging.getLogger(__name__)

_ENOUGH_BYTES = 50 * 1024 * MIB  # a tenth of a large disk is no reason for an alert
_TENTH = 10
# Above the refusal line: this many segments, or ballasts if those are larger.
_MARGIN = 2
# What a byte of the log may cost in all: itself, the rows derived from it, the timer's units.
_DISK_BYTES_PER_LOG_BYTE = 4
_LOOKS_PER_SEGMENT_MAX = 32
_NEVER = 1 << 62
# At most how much longer one message makes the base frame: its topic's first totals, a digit here and there.
_BASE_GROWTH = 48
# At most what a message takes in derived files until the next checkpoint: entry, queue row, index pairs.
_DERIVED_BYTES = 160
# What a data directory needs to work for long without a warning, in segments and ballasts: the segment that
# is written, the spare and the ballast, all allocated ahead; the space from there up to the warning line; the
# timer's wheels, the indexes and the consumers' log.
_MINIMUM_SEGMENTS = 6
_MINIMUM_BALLASTS = 4


@dataclass(frozen=True, slots=True)
class DiskSpaceView:
    """The result of one look at the disk."""

    free_bytes: int
    total_bytes: int
    warn_below_bytes: int
    refuse_below_bytes: int
    is_low: bool
    is_full: bool  # sends are refused
    is_gone: bool = False  # the open directory was removed or unmounted; no figure is known

    @property
    def word(self) -> str:
        if self.is_gone:
            return "gone"
        return "full" if self.is_full else "low" if self.is_low else "enough"


_GONE = DiskSpaceView(0, 0, 0, 0, is_low=False, is_full=False, is_gone=True)
_IS_GONE = _GONE.word


def warning_line(refusal_line: int, total_bytes: int, margin_bytes: int) -> int:
    """Free bytes below which it is time to act, on a disk of that size."""
    return max(refusal_line + margin_bytes, min(total_bytes // _TENTH, _ENOUGH_BYTES))


def disk_minimum(segment_bytes: int, ballast_bytes: int) -> int:
    """The smallest disk to give a data directory: 1 GiB for segments of the usual size."""
    return _MINIMUM_SEGMENTS * segment_bytes + _MINIMUM_BALLASTS * ballast_bytes


def too_small(error: DiskFullError, segment_bytes: int) -> DiskFullError:
    """The error for a directory that cannot even be opened."""
    needed = _mib(disk_minimum(segment_bytes, BALLAST_BYTES))
    return DiskFullError(f"{error}, or name a directory on a larger one (at least {needed} MiB in all)")


class DiskSpace:
    """The disk space of one store. All but `view` need the writer lock."""

    def __init__(self, disk: Disk, directory: Path, log: SegmentedLog, ballast: Ballast) -> None:
        self._disk = disk
        self._directory = directory
        self._place = disk.place_of(directory)
        self._log = log
        self._ballast = ballast
        self._segment_bytes = log.pool.segment_bytes
        self._margin_bytes = _MARGIN * max(self._segment_bytes, ballast.size)
        self._minimum = _mib(disk_minimum(self._segment_bytes, ballast.size))
        self._said = "enough"
        self._look_at_end = 0  # the log's end at which it is time to look again

    # -- before a send ----------------------------------------------------------------------------

    def reserve(self, payload_bytes: Sequence[int], message_count: int) -> None:
        """`DiskFullError` unless frames with these payloads, so many messages, can be appended next."""
        self.require_kept_back()
        try:
            self._log.reserve(
                payload_bytes,
                opening_growth_max=_BASE_GROWTH * (message_count + 1),
                # Some derived rows find space in the ballast; for many there must be space beside it.
                also_free_bytes=max(0, _DERIVED_BYTES * message_count - self._ballast.size // 2),
            )
        except DiskFullError as error:
            self.look()
            raise self._full(error) from error

    def require_kept_back(self) -> None:
        """Return if the ballast is whole or can be made whole; `DiskFullError` if not, or if all is gone."""
        if self._said == _IS_GONE or self._log.written_end >= self._look_at_end:
            self.look()
        if self._said == _IS_GONE:
            raise DiskFullError(
                f"data directory {self._directory} removed or unmounted; restore it, then send again"
            )
        try:
            self._ballast.require_whole()
        except DiskFullError as error:
            self.look()
            raise self._full(error) from error

    def _full(self, error: DiskFullError) -> DiskFullError:
        """The error for a send: how much must be free before any is taken, which may be several files."""
        seen = self.view()
        if seen.is_gone or seen.free_bytes >= seen.refuse_below_bytes:  # this one alone asks for too much
            return error
        return DiskFullError(f"the disk is full: {self._figures(seen)}; {self._what_to_do()}")

    def _figures(self, seen: DiskSpaceView) -> str:
        return (
            f"{_mib(seen.free_bytes)} of {_mib(seen.total_bytes)} MiB are free at {self._directory}, "
            f"{_mib_up(seen.refuse_below_bytes - seen.free_bytes)} MiB more must be free before sends go on"
        )

    def _what_to_do(self) -> str:
        return (
            "free space on this disk, or move the data directory to a larger one "
            f"(at least {self._minimum} MiB in all)"
        )

    # -- looking ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Measure the space, and log a change of its state."""
        seen = self.view()
        if seen.word != self._said:
            self._say(seen)
            self._said = seen.word
        if seen.is_gone:
            return
        far = seen.free_bytes - seen.warn_below_bytes - self._segment_bytes
        step = max(far // _DISK_BYTES_PER_LOG_BYTE, self._segment_bytes // _LOOKS_PER_SEGMENT_MAX)
        self._look_at_end = _NEVER if seen.is_low else self._log.written_end + step

    def view(self) -> DiskSpaceView:
        """How much space there is right now."""
        try:
            free_bytes = max(0, self._disk.free_bytes(self._directory))
            total_bytes = self._disk.total_bytes(self._directory)
        except OSError:
            return _GONE
        if self._disk.place_of(self._directory) != self._place:
            return _GONE
        refusal = self._log.pool.missing_bytes + self._ballast.missing_bytes
        line = warning_line(refusal, total_bytes, self._margin_bytes)
        # Once low, a little more must be free than the line says, or every file that comes and goes logs.
        calm = line if self._said == "enough" else line + self._segment_bytes
        is_stuck = self._log.left_in_segment == 0 and free_bytes < refusal
        is_full = self._log.pool.is_short or not self._ballast.is_whole or is_stuck
        return DiskSpaceView(free_bytes, total_bytes, line, refusal, is_full or free_bytes < calm, is_full)

    def _say(self, seen: DiskSpaceView) -> None:
        found = f"{_mib(seen.free_bytes)} of {_mib(seen.total_bytes)} MiB are free"
        match seen.word:
            case "gone":
                logger.error(
                    "data directory %s was removed, renamed or unmounted: sends are refused until it is "
                    "restored; put it back, or stop the broker and restore a backup",
                    self._directory,
                )
            case "full":
                logger.warning(
                    "the disk is full: %s; releases go on; %s", self._figures(seen), self._what_to_do()
                )
            case "low":
                logger.warning(
                    "the disk is nearly full: %s at %s, and sends are refused when the log needs a new "
                    "segment and less than %s MiB are free; %s",
                    found,
                    self._directory,
                    _mib(seen.refuse_below_bytes),
                    self._what_to_do(),
                )
            case _:
                again = "data directory is there" if self._said == "gone" else "disk has space"
                logger.warning("the %s again: %s", again, found)


def _mib_up(count: int) -> str:
    """Rounded up: so much is enough."""
    return f"{math.ceil(count / MIB):,}" if count >= MIB else f"{math.ceil(count * 1000 / MIB) / 1000:.3f}"


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f}" if count >= MIB else f"{count / MIB:.3f}"
