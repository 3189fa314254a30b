"""Damage to frames of a running broker's commit log, and the bytes that were there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tidemill.core.model import StoredMessage
from tidemill.log.frame import Frame
from tidemill.store.formats.frame_contents import section_in
from tidemill.store.message_store import MessageStore

_SWAPPED = (8, 64, 300)


@dataclass
class LogDamage:
    """What was overwritten, to be put back; and the frames that were there, as they were."""

    store: MessageStore
    directory: Path
    before: list[tuple[Path, int, bytes]] = field(default_factory=list)
    frames: dict[int, Frame] = field(default_factory=dict)

    def strike(self, random: Random) -> None:
        """Flip bits, zero or swap parts of a few frames that are safe on disk."""
        log = self.store.log
        present = [_copied(frame) for frame in log.intact_frames(log.head, log.synced_end)]
        for frame in random.sample(present, min(len(present), random.choice((1, 1, 2, 5)))):
            random.choice((self._flip, self._zero, self._swap))(frame, random)
        log.forget_verified()
        self.frames |= {f.offset: f for f in present if log.intact_frame(f.offset) is None}

    def undo(self) -> None:
        """Put all bytes back."""
        for path, at, content in reversed(self.before):
            if path.exists():  # else its segment was cut
                _put(path, at, content)

    def holds(self, place: int) -> bool:
        return place >> 16 in self.frames

    def message(self, place: int) -> StoredMessage:
        """The message at a place as it was before."""
        frame = self.frames[place >> 16]
        return section_in(frame.kind, frame.payload).message(place & 0xFFFF)

    def _place(self, offset: int) -> tuple[Path, int]:
        start = max(s for s in self.store.log.segment_starts() if s <= offset)
        return self.directory / "log" / f"{start:020d}.log", offset - start

    def _write(self, offset: int, content: bytes) -> None:
        path, at = self._place(offset)
        self.before.append((path, at, _read(path, at, len(content))))
        _put(path, at, content)

    def _flip(self, frame: Frame, random: Random) -> None:
        at = random.randrange(frame.offset, frame.end)
        path, position = self._place(at)
        (byte,) = _read(path, position, 1)
        self._write(at, bytes([byte ^ 1 << random.randrange(8)]))

    def _zero(self, frame: Frame, random: Random) -> None:
        at = random.randrange(frame.offset, frame.end)
        self._write(at, bytes(random.randrange(1, frame.end - at + 1)))

    def _swap(self, frame: Frame, random: Random) -> None:
        path, one = self._place(frame.offset)
        length = min(random.choice(_SWAPPED), frame.end - frame.offset)
        used = self.store.log.synced_end - (frame.offset - one)
        other = random.randrange(max(1, min(path.stat().st_size, used) - length))
        start = frame.offset - one
        first, second = _read(path, one, length), _read(path, other, length)
        self._write(start + one, second)
        self._write(start + other, first)


def _copied(frame: Frame) -> Frame:
    return Frame(frame.offset, frame.kind, frame.synced_end, frame.stamp_ms, memoryview(bytes(frame.payload)))


def _read(path: Path, at: int, length: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, length, at)
    finally:
        os.close(fd)


def _put(path: Path, at: int, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, content, at)
    finally:
        os.close(fd)
