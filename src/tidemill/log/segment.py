"""One file of a log, and its frames as they are read back.

Invariant: a frame that `frame` returns has matched its checksum. A payload of up to `COPY_BYTES_MAX` is
copied and the copy verified, so what is written over the file afterwards does not reach the reader. A larger
one is a view into the file; that it was verified is remembered until the file is mapped anew, or until
`forget_verified`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.log.disk import ByteArray, DiskFile
from tidemill.log.frame import COPY_BYTES_MAX, Frame, decode_frame, next_frame


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
