"""Zeros written into the preallocated space of a log ahead of its small frames.

Preallocated space is only promised: the first write to a part of it changes the file's map as well, and the
sync must bring that to the disk too. So the space is written a little ahead, with the zeros that are read
there anyway; the frames that follow are then synced in one step.

Owns up to where that was done. Invariant: zeros go behind the last frame, and never past the space.
"""

from __future__ import annotations

from tidemill.log.disk import DiskFile

# Little enough to be written between two frames.
_AHEAD_BYTES = 1 << 18


class Prezeroing:
    """For one log, whose segments follow each other. For one thread at a time, as appending is."""

    def __init__(self) -> None:
        self._end = 0

    def go_before(self, file: DiskFile, file_start: int, frames_end: int, room_end: int) -> None:
        """Write zeros behind `frames_end`, if the frames have come to where they were. Offsets in the log."""
        if frames_end <= self._end:
            return
        self._end = min(frames_end + _AHEAD_BYTES, room_end)
        if self._end > frames_end:
            file.write(frames_end - file_start, bytes(self._end - frames_end))
