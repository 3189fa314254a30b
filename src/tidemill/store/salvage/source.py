"""A damaged log, read from one end to the other: frames that read back, and the ranges that do not.

Owns finding the frames. A frame counts only if its checksum is right and it stands at the offset that it
names, so a page that was moved elsewhere is damage. One segment file is held in memory at a time. Nothing
is written.

What lies behind the last whole frame of the last segment is a torn tail, which never was acknowledged,
unless something says that the log was safe beyond it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.core.limits import LOG_OFFSET_MAX
from tidemill.log.checkpoint import CheckpointContent, Decode, decode_checkpoint, is_content
from tidemill.log.disk import ByteArray
from tidemill.log.frame import HEADER_BYTES, Frame, decode_frame, next_frame
from tidemill.log.head_record import HEAD_FORMAT, decode_head
from tidemill.log.read_only_disk import ReadOnlyDisk

_SEGMENT = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a log without a frame that reads back."""

    file: str
    start: int
    end: int
    is_missing: bool  # the file is not there, or ends before

    @property
    def byte_count(self) -> int:
        return self.end - self.start


Piece = Frame | Damage


def newest_checkpoint(
    disk: ReadOnlyDisk, directory: Path, name: str, version: int, decode: Decode
) -> CheckpointContent | None:
    """The newest generation of a checkpoint that reads back; it may be of another version."""
    found = readable_checkpoints(disk, directory, name, version, decode)
    return max(found, key=lambda content: content.generation, default=None)


def readable_checkpoints(
    disk: ReadOnlyDisk, directory: Path, name: str, version: int, decode: Decode
) -> list[CheckpointContent]:
    """The generations that read back and that `decode` accepts, if they are not of a newer version."""
    paths = (directory / f"{name}.0", directory / f"{name}.1")
    found = (decode_checkpoint(bytes(disk.read(path))) for path in paths if disk.exists(path))
    return [content for content in found if content is not None and is_content(content, version, decode)]


class SourceLog:
    """The segment files of one directory."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path) -> None:
        self._disk = disk
        self.directory = directory
        names = (_SEGMENT.fullmatch(name) for name in disk.names(directory))
        starts = [int(name[1]) for name in names if name is not None]
        head = newest_checkpoint(disk, directory, "head", HEAD_FORMAT, decode_head)
        self.head = decode_head(head.content) if head is not None else 0
        self.has_lost_its_head_record = head is None and any(
            disk.exists(directory / f"head.{n}") for n in (0, 1)
        )
        if self.has_lost_its_head_record and starts:
            self.head = starts[0]
        while len(starts) > 1 and starts[1] <= self.head:
            starts.pop(0)  # a head cut that was not finished
        self.starts = starts
        self.read_end = self.head  # where the last frame that read back ends

    @property
    def byte_count(self) -> int:
        return sum(self._disk.size(self._path(start)) for start in self.starts)

    def segment_starts(self) -> list[int]:
        return self.starts

    def intact_frame(self, offset: int) -> Frame | None:
        """The frame at `offset`, if it reads back."""
        start = self.starts[self._index_of(offset)]
        if offset < start:
            return None
        header = self._bytes(start, offset - start, HEADER_BYTES)
        length = int.from_bytes(header[8:12].tobytes(), "little")
        if len(header) < HEADER_BYTES or length > self._disk.size(self._path(start)):
            return None
        whole = self._bytes(start, offset - start, HEADER_BYTES + length)
        return decode_frame(whole, 0, offset, verify=True)

    def intact_frames(self, from_offset: int = 0, end: int = LOG_OFFSET_MAX) -> Iterator[Frame]:
        """Every frame in `[from_offset, end)` that reads back."""
        for start in self.starts[self._index_of(from_offset) :]:
            if start >= end:
                return
            data = self._bytes(start)
            at = max(0, from_offset - start)
            while (frame := next_frame(data, at, start)) is not None and frame.offset < end:
                yield frame
                at = frame.end - start

    def file_of(self, offset: int) -> str:
        """The name of the file that holds an offset."""
        return self._path(self.starts[self._index_of(offset)]).name

    def pieces(self, safe_end: int) -> Iterator[Piece]:
        """Every frame and every damaged range, in order; `safe_end` is what is known to have been safe."""
        at = self.head
        if self.starts and self.starts[0] > at:
            yield self._missing(at, self.starts[0])
            at = self.starts[0]
        for start, following in zip(self.starts, [*self.starts[1:], None], strict=False):
            data = self._bytes(start)
            if following is not None:
                data = data[: following - start]
            at = start
            while (frame := next_frame(data, at - start, start)) is not None:
                safe_end = max(safe_end, frame.synced_end)
                if frame.offset > at:
                    yield Damage(self._path(start).name, at, frame.offset, is_missing=False)
                yield frame
                at = self.read_end = frame.end
            if following is not None and at < following:
                yield from self._unread(start, data, at, following)
                at = following
        if safe_end > at:
            yield from self._tail(at, safe_end)

    def _tail(self, at: int, safe_end: int) -> Iterator[Piece]:
        if not self.starts or at < self.starts[-1]:
            yield self._missing(at, safe_end)
            return
        start = self.starts[-1]
        data = self._bytes(start)
        used = np.flatnonzero(data[at - start :])
        end = max(safe_end, at + (int(used[-1]) // 8 + 1) * 8 if len(used) else at)
        yield from self._unread(start, data, at, end)

    def _unread(self, start: int, data: ByteArray, at: int, end: int) -> Iterator[Damage]:
        """What no frame of a file reads back of, up to `end`: damaged bytes, then missing ones."""
        in_file = max(at, min(end, start + len(data)))
        if in_file > at:
            yield Damage(self._path(start).name, at, in_file, is_missing=False)
        if end > in_file:
            yield self._missing(in_file, end)

    def _missing(self, start: int, end: int) -> Damage:
        return Damage(self._path(start).name, start, end, is_missing=True)

    def bases(self) -> Iterator[Frame]:
        """The frames that open the files, where they read back."""
        for start in self.starts:
            if (frame := self.intact_frame(start)) is not None:
                yield frame

    def _index_of(self, offset: int) -> int:
        return max(0, bisect_right(self.starts, offset) - 1)

    def _bytes(self, start: int, at: int = 0, length: int | None = None) -> ByteArray:
        return np.frombuffer(self._disk.read(self._path(start), at, length), np.uint8)

    def _path(self, start: int) -> Path:
        return self.directory / f"{start:020d}.log"
