"""Reading the frames of a log's segments. Changes nothing.

Owns the list of segments, which is replaced and never cut in place, so that readers need no lock.

Invariant: a frame that `frame` returns has matched its checksum. A payload of up to `COPY_BYTES_MAX` is
copied and the copy verified, so what is written over the file afterwards does not reach the reader. A larger
one is a view into the file; that it was verified is remembered until the file is mapped anew, or until
`forget_verified`.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.core.errors import DamagedFrameError
from tidemill.log.disk import ByteArray, DiskFile
from tidemill.log.frame import ALIGNMENT, COPY_BYTES_MAX, Frame, decode_frame, next_frame

SUFFIX = ".log"
SEGMENT_NAME = re.compile(r"\d{20}\.log")


@dataclass(slots=True)
class Segment:
    """A file of frames. Reads may run beside each other and beside an append."""

    start: int
    file: DiskFile
    _view: ByteArray | None = None
    _verified: dict[int, Frame] = field(default_factory=dict)  # large frames by offset

    def bytes(self) -> ByteArray:
        """The whole file, as it is mapped."""
        if self._view is None:
            self._view = self.file.map(self.file.size())
        return self._view

    def forget_view(self) -> None:
        """Map the file anew when it is read next: its size is about to change, or it is closed."""
        self._view = None
        self._verified = {}

    def forget_verified(self) -> None:
        """Verify large frames again when they are read next."""
        self._verified = {}

    def frame(self, offset: int) -> Frame | None:
        """The frame at a log offset, verified; None if it does not read back."""
        known = self._verified.get(offset)
        if known is not None:
            return known
        if offset < self.start:  # cut off with the head meanwhile
            return None
        verified = self._verified
        frame = decode_frame(self.bytes(), offset - self.start, offset, verify=True, copies=True)
        if frame is not None and len(frame.payload) > COPY_BYTES_MAX:
            verified[offset] = frame
        return frame

    def appended_frame(self, offset: int) -> Frame | None:
        """The frame at a log offset, which was just written; not verified."""
        return decode_frame(self.bytes(), offset - self.start, offset, verify=False)

    def next_frame(self, offset: int) -> Frame | None:
        """The first frame at or after a log offset that reads back."""
        return next_frame(self.bytes(), max(0, offset - self.start), self.start)


class LogReads:
    """What can be read of a log. `SegmentedLog` also writes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._segments: list[Segment] = []
        self.written_end = 0

    @property
    def head(self) -> int:
        """Offset of the oldest byte still there."""
        return self._segments[0].start if self._segments else self.written_end

    def segment_starts(self) -> list[int]:
        return [segment.start for segment in self._segments]

    # -- one frame --------------------------------------------------------------------------------

    def frame(self, offset: int) -> Frame:
        """The frame at `offset`, verified; it must be at or above `head` and below `written_end`.

        `DamagedFrameError` if it does not read back.
        """
        segment = self._segment_of(offset)
        frame = segment.frame(offset)
        if frame is None:
            raise DamagedFrameError.at(str(self._path(segment.start)), offset, offset - segment.start)
        return frame

    def appended_frame(self, offset: int) -> Frame:
        """The frame that was just appended at `offset`; not verified."""
        frame = self._segment_of(offset).appended_frame(offset)
        assert frame is not None
        return frame

    def frame_after(self, offset: int) -> Frame | None:
        """The first frame behind `offset` that reads back: where damage at `offset` ends."""
        at = self._index_of(offset)
        found = (segment.next_frame(offset + ALIGNMENT) for segment in self._segments[at:])
        return next((frame for frame in found if frame is not None), None)

    def damaged_bytes(self, offset: int) -> bytes:
        """What the file has from a damaged frame on, up to the next one that reads back or its end."""
        segment, after = self._segment_of(offset), self.frame_after(offset)
        data, start = segment.bytes(), offset - segment.start
        stop = self.written_end if after is None else after.offset
        return data[start : min(len(data), stop - segment.start)].tobytes()

    def forget_verified(self) -> None:
        """Verify large frames again when they are read next."""
        for segment in self._segments:
            segment.forget_verified()

    # -- many frames ------------------------------------------------------------------------------

    def frames(self, from_offset: int, end: int) -> Iterator[Frame]:
        """Every frame in `[from_offset, end)`, checksums looked at, nothing changed."""
        at = max(from_offset, self.head)
        while at < end:
            segment = self._segment_of(at)
            frame = decode_frame(segment.bytes(), at - segment.start, at, verify=True)
            if frame is None:
                path = str(self._path(segment.start))
                message = f"{path}: the frame at offset {at} does not read back: the file is damaged. "
                raise DamagedFrameError(message + self._remedy, path, at, at - segment.start)
            yield frame
            at = frame.end

    def intact_frame(self, offset: int) -> Frame | None:
        """The frame at `offset`, if it reads back."""
        return self._segment_of(offset).frame(offset)

    def intact_frames(self, from_offset: int, end: int) -> Iterator[Frame]:
        """Every frame in `[from_offset, end)` that reads back; what does not is passed over."""
        for segment in self._segments[self._index_of(from_offset) :]:
            if segment.start >= end:
                return
            data = segment.bytes()
            at = max(0, from_offset - segment.start)
            while (frame := next_frame(data, at, segment.start)) is not None and frame.offset < end:
                yield frame
                at = frame.end - segment.start

    def readable_end(self) -> int:
        """Where the last whole frame of the last segment ends. Changes nothing."""
        if not self._segments:
            return 0
        segment = self._segments[-1]
        data, at = segment.bytes(), segment.start
        while (frame := decode_frame(data, at - segment.start, at, verify=True)) is not None:
            at = frame.end
        return at

    # -- segments ---------------------------------------------------------------------------------

    @property
    def _remedy(self) -> str:
        return (
            "Nothing was changed. Restore the data directory from a backup, or copy what can be read: "
            f"`tidemill salvage {self.directory.parent} --to NEW`"
        )

    def _path(self, start: int) -> Path:
        return self.directory / f"{start:020d}{SUFFIX}"

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[self._index_of(offset)]

    def _index_of(self, offset: int) -> int:
        return max(0, bisect.bisect_right(self._segments, offset, key=lambda segment: segment.start) - 1)
