"""The segmented log: frames in files of bounded size, appended at the tail, dropped at the head.

Owns the files `<start offset, 20 digits>.log` of one directory. Every segment is preallocated and opens with
an *opening* frame that the owner supplies, so that any suffix of the log explains itself. `segment_pool.py`
keeps a spare segment back: an append that is `reserved` (releases, cancels) may take it when the disk is
full, and after that asks its owner to free space; any other append is refused then, before anything is
written.

Invariants:
- segments are contiguous: each starts where the one before ends; no frame crosses a border;
- bytes behind the written end of the last segment are zero;
- `synced_end` only grows, and everything below it survives a power cut, however syncs overlap (`sync_order`).

Appending is for one thread at a time (the owner's writer lock); `sync` and reads may run beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tidemill.core.errors import CorruptionError, DiskFullError
from tidemill.log.disk import Bytes, Disk, DiskFile
from tidemill.log.frame import (
    HEADER_BYTES,
    PLAIN_FORMAT,
    Frame,
    decode_frame,
    encode_header,
    frame_bytes,
    newest_synced_end_after,
    payload_bytes,
)
from tidemill.log.head_record import HeadRecord
from tidemill.log.log_reads import SEGMENT_NAME, SUFFIX, LogReads, Segment
from tidemill.log.row_table import MakeRoom
from tidemill.log.segment_pool import SegmentPool
from tidemill.log.sync_order import SyncOrder

# Below this it is cheaper to join header and payload than to write twice.
_JOIN_BYTES_MAX = 64 * 1024
# How far zeros are written ahead: little enough to be written between two frames.
_AHEAD_BYTES = 1 << 18

Opening = Callable[[int], tuple[int, bytes]]


class SegmentedLog(LogReads):
    """One append-only log. Call `recover` (to its end) once before appending."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        segment_bytes: int,
        opening: Opening,
        make_room: MakeRoom = lambda: False,
    ) -> None:
        super().__init__(directory)
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._opening = opening
        self._sync_lock = threading.Lock()  # protects the two ends, _unsynced and _syncs
        self._unsynced: list[Segment] = []
        self._syncs = SyncOrder()
        self.synced_end = 0
        self._zeros = Prezeroing()
        self._tail_end = 0  # up to where there is space in the last segment; known once it is recovered
        disk.make_dir(directory)
        self.pool = SegmentPool(disk, directory, segment_bytes, make_room)
        self._head_record = HeadRecord(disk, directory)
        starts = self._present_starts()
        self._segments = [Segment(start, disk.open(self._path(start))) for start in starts]
        if starts:
            self.written_end = starts[-1]

    def _present_starts(self) -> list[int]:
        """Where segments start, after a head cut that a crash broke off is finished."""
        names = self._disk.names(self.directory)
        starts = [int(name.removesuffix(SUFFIX)) for name in names if SEGMENT_NAME.fullmatch(name)]
        head = self._head_record.load()
        if len(starts) > 1 and starts[1] <= head:
            self._head_record.make_safe()  # as in a cut: before the first file goes
        while len(starts) > 1 and starts[1] <= head:
            self._disk.remove(self._path(starts.pop(0)))
            self._disk.sync_dir(self.directory)
        if starts and starts[0] > head:
            raise CorruptionError(
                f"{self.directory}: the log begins at offset {head}, but its first file begins at "
                f"{starts[0]}: files are missing, or `head.*` is damaged. {self._remedy}"
            )
        return starts

    # -- where things are -------------------------------------------------------------------------

    def size_from(self, offset: int) -> int:
        """Bytes of segment files from `offset` on, for progress bars."""
        last = self._segments[-1]
        return last.start + last.file.size() - offset

    @property
    def left_in_segment(self) -> int:
        """Bytes that the present segment still takes."""
        return self._tail_end - self.written_end if self._segments else 0

    # -- opening ----------------------------------------------------------------------------------

    def recover(self, from_offset: int, known_synced_end: int) -> Iterator[Frame]:
        """Yield every whole frame from `from_offset` (a frame border), then cut a torn tail.

        `known_synced_end` is what the caller knows to have been safe; bytes that do not read back below
        it, or below what any later frame says, are corruption and raise.
        """
        at = max(from_offset, self.head)
        safe_end = known_synced_end
        index = self._index_of(at)
        self._refuse_missing_bytes(at, index, safe_end)
        while index < len(self._segments):
            segment = self._segments[index]
            data = segment.bytes()
            while (frame := decode_frame(data, at - segment.start, at, verify=True)) is not None:
                safe_end = max(safe_end, frame.synced_end)
                yield frame
                at = frame.end
            if index + 1 == len(self._segments) or self._segments[index + 1].start != at:
                break
            index += 1
        self._judge_tail(at, index, safe_end)
        self._write_again(safe_end, at)
        for segment in self._segments[self._index_of(from_offset) : index]:
            segment.file.sync()  # a killed process may have left it written but not safe
        self._cut_tail(at, index)

    def _write_again(self, safe_end: int, end: int) -> None:
        """Write the bytes once more that nothing says are safe.

        After a failed sync the operating system may hold them as clean: it shows them, but another sync
        alone would not bring them to the disk.
        """
        for segment in self._segments:
            position, stop = max(0, safe_end - segment.start), end - segment.start
            if position < min(stop, segment.file.size()):
                segment.file.write(position, segment.bytes()[position:stop].tobytes())

    def _refuse_missing_bytes(self, at: int, index: int, safe_end: int) -> None:
        if self._segments:
            segment = self._segments[index]
            is_missing = at - segment.start > segment.file.size()
        else:
            is_missing = safe_end > 0
        if is_missing:
            raise CorruptionError(
                f"{self.directory}: bytes up to offset {max(at, safe_end)} were safe, but segment files are "
                f"missing or short. {self._remedy}"
            )

    def _judge_tail(self, at: int, index: int, safe_end: int) -> None:
        for later in range(index, len(self._segments)):
            segment = self._segments[later]
            position = at - segment.start if later == index else 0
            safe_end = max(safe_end, newest_synced_end_after(segment.bytes(), position, segment.start))
        if safe_end > at and self._segments:
            raise CorruptionError(
                f"{self._path(self._segments[index].start)}: the frame at offset {at} does not read back, "
                f"but the log was safe up to {safe_end}. {self._remedy}"
            )

    def _cut_tail(self, at: int, index: int) -> None:
        kept = index + 1
        if self._segments and at == self._segments[index].start:
            kept = index  # not even its opening frame is whole: the segment was just begun
        for segment in reversed(self._segments[kept:]):
            segment.file.close()
            self._disk.remove(self._path(segment.start))
            self._disk.sync_dir(self.directory)
        self._segments = self._segments[:kept]
        self.pool.forget_leftovers()
        self.written_end = at
        if self._segments:
            last = self._segments[-1]
            last.forget_view()
            # Stale bytes behind the cut could pass for frames later on: make them zeros, durably.
            last.file.truncate(at - last.start)
            if at - last.start < self._segment_bytes:
                with suppress(DiskFullError):  # it counts as full then
                    last.file.preallocate(self._segment_bytes)
            self._tail_end = last.start + last.file.size()
            last.file.sync()
            self._disk.sync_dir(self.directory)  # nor are the names of a killed process safe yet
        self.synced_end = at

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        kind: int,
        parts: Sequence[Bytes],
        stamp_ms: int,
        *,
        reserved: bool = False,
        version: int = PLAIN_FORMAT,
    ) -> int:
        """Write one frame and return its offset. Not synced. `DiskFullError` leaves the log as it was."""
        needed = frame_bytes(payload_bytes(parts))
        if not reserved:
            self.pool.set_aside([])
        if self.written_end + needed > self._tail_end:
            self._roll(needed, stamp_ms, reserved)
        return self._write(kind, parts, stamp_ms, version)

    def _write(self, kind: int, parts: Sequence[Bytes], stamp_ms: int, version: int = PLAIN_FORMAT) -> int:
        offset = self.written_end
        segment = self._segments[-1]
        header = encode_header(kind, parts, offset, self.synced_end, stamp_ms, version)
        length = payload_bytes(parts)
        position = offset - segment.start
        if length <= _JOIN_BYTES_MAX:
            segment.file.write(position, b"".join((header, *parts)))
        else:
            segment.file.write(position, header)
            position += HEADER_BYTES
            for part in parts:
                segment.file.write(position, part)
                position += len(part)
        end = offset + frame_bytes(length)
        if length <= _JOIN_BYTES_MAX:
            self._zeros.go_before(segment.file, segment.start, end, self._tail_end)
        with self._sync_lock:
            if not self._unsynced or self._unsynced[-1] is not segment:
                self._unsynced.append(segment)
            self.written_end = end
        return offset

    def _roll(self, needed: int, stamp_ms: int, reserved: bool) -> None:
        start = self.written_end
        opening_kind, opening_payload = self._opening(start)
        size = max(self._segment_bytes, frame_bytes(len(opening_payload)) + needed)
        file = self.pool.take(self._path(start), size, is_reserved=reserved)
        if self._segments:
            sealed = self._segments[-1]
            sealed.forget_view()
            sealed.file.truncate(start - sealed.start)
        self._segments.append(Segment(start, file))
        self._tail_end = start + file.size()
        self._write(opening_kind, [opening_payload], stamp_ms)

    def reserve(
        self, payload_bytes: Sequence[int], *, opening_growth_max: int, also_free_bytes: int = 0
    ) -> None:
        """Make sure that frames with payloads of these sizes, appended next, cannot meet a full disk.

        On `DiskFullError` nothing has changed. `opening_growth_max` is how many bytes longer the owner's
        opening frame may become by those frames; `also_free_bytes` must be left on the disk for other files.
        """
        at, size = self.written_end, self._tail_end
        opening = 0
        wanted: list[int] = []
        for needed in map(frame_bytes, payload_bytes):
            if at + needed > size:
                opening = opening or frame_bytes(len(self._opening(self.written_end)[1]) + opening_growth_max)
                size = max(self._segment_bytes, opening + needed)
                wanted.append(size)
                at = opening
            at += needed
        self.pool.set_aside(wanted, also_free_bytes=also_free_bytes)

    # -- safety -----------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything written so far survive a power cut; returns the end that is now safe.

        Several threads may be in here at once; each covers what was written before it came, and the end moves
        when those that came earlier are through as well.
        """
        with self._sync_lock:
            target = self.written_end
            if target == self.synced_end:
                return target
            dirty = list(self._unsynced)
            own = self._syncs.begin(target)
        is_safe = False
        try:
            for segment in dirty:
                segment.file.sync()
            is_safe = True
        finally:
            with self._sync_lock:
                self.synced_end = max(self.synced_end, self._syncs.end(own, is_safe=is_safe))
                # The last of them may have grown while it was synced; the others are sealed.
                if is_safe and len(dirty) > 1:
                    self._forget_unsynced(dirty[:-1])
        return self.synced_end

    def _forget_unsynced(self, segments: list[Segment]) -> None:
        self._unsynced = [segment for segment in self._unsynced if segment not in segments]

    # -- the head ---------------------------------------------------------------------------------

    def cut_head(self, before_offset: int) -> int:
        """Drop whole segments that end at or below `before_offset`; returns the new head."""
        starts = [segment.start for segment in self._segments if segment.start <= before_offset]
        kept = max(starts, default=self.head)
        if kept > self.head:
            self._head_record.save(kept)
        while len(self._segments) > 1 and self._segments[1].start <= before_offset:
            segment = self._segments[0]
            self._disk.remove(self._path(segment.start))
            # One by one, so that a power cut can never leave a hole between two segments.
            self._disk.sync_dir(self.directory)
            self._segments = self._segments[1:]
            with self._sync_lock:
                self._forget_unsynced([segment])
                self._syncs.close(segment.file)
        return self.head

    def close(self) -> None:
        for segment in self._segments:
            segment.forget_view()
            segment.file.close()
        self._segments = []


class Prezeroing:
    """Zeros written into the preallocated space of a log ahead of its small frames.

    Preallocated space is only promised: the first write to a part of it changes the file's map as well, and
    the sync must bring that to the disk too. With the zeros there, small frames are synced in one step.
    Invariant: zeros go behind the last frame, and never past the space.
    """

    def __init__(self) -> None:
        self._end = 0

    def go_before(self, file: DiskFile, file_start: int, frames_end: int, room_end: int) -> None:
        """Write zeros behind `frames_end`, if the frames have come to where they were. Offsets in the log."""
        if frames_end <= self._end:
            return
        self._end = min(frames_end + _AHEAD_BYTES, room_end)
        if self._end > frames_end:
            file.write(frames_end - file_start, bytes(self._end - frames_end))
