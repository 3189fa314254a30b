"""Copying a damaged commit log, frame by frame, into a new store.

Owns the one pass over the source. Every frame that reads back is appended to the copy with its kind, payload
and stamp, through the code that appends and replays everywhere; the copy writes base frames of its own.
Where frames are missing, `Bridge` brings the copy to the state that the next frame takes for granted, and
notes what that took. So seqs, queue offsets, ids and order are those of the source; only log offsets differ.

A seq that a release or a re-enter names and that is not pending here was made by a lost frame: it is
written as `~seq` (frames.py).

Invariant: the copy's log replays to the state that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tidemill.log.arrays import I64
from tidemill.log.disk import Bytes
from tidemill.log.frame import Frame, frame_bytes
from tidemill.store.formats.frames import (
    Base,
    End,
    Half,
    Kind,
    ReEnter,
    Release,
    SendBack,
    Settlement,
    TopicChange,
)
from tidemill.store.message_store import MessageStore
from tidemill.store.salvage.bridge import Bridge
from tidemill.store.salvage.hints import Hints
from tidemill.store.salvage.region import Region
from tidemill.store.salvage.source import Damage, SourceLog

Progress = Callable[[int, int], None]

# How much is copied between two syncs, and between two index checkpoints.
_SYNC_BYTES = 32 << 20
_CHECKPOINT_BYTES = 512 << 20


class LogCopy:
    """One copy. `run` once, then look at what it found."""

    def __init__(
        self,
        source: SourceLog,
        store: MessageStore,
        hints: Hints,
        settled_below: int,
        now_ms: int,
        on_progress: Progress,
    ) -> None:
        self._source = source
        self._store = store
        self._hints = hints
        self._settled_below = settled_below
        self._now_ms = now_ms
        self._on_progress = on_progress
        self._bridge = Bridge(store, hints)
        self._places: dict[int, int] = {}  # open halves: place in the source -> place in the copy
        self._synced_to = 0
        self._checkpoint_at = 0
        self.regions: list[Region] = []
        self.damaged_bases: list[Damage] = []  # frames that open a file; nothing is lost with them
        self.settlements: list[Settlement] = []  # that the consumers' checkpoint does not include
        self.frame_count = 0
        self.expired_releases = 0  # released messages whose bytes are lost
        self.stamp_ms: int | None = None  # of the last frame that was read

    @property
    def _open_region(self) -> Region | None:
        return self.regions[-1] if self.regions and not self.regions[-1].is_bounded else None

    def run(self, queue_ends: dict[tuple[int, int], int]) -> None:
        """Copy everything. `queue_ends`: offsets that are known to have been given away, at least."""
        total, read = max(1, self._source.byte_count), 0
        self._begin()
        for piece in self._source.pieces(self._hints.offset):
            if isinstance(piece, Damage):
                self._meet_damage(piece)
                continue
            self._meet_checkpoint(piece.offset)
            if (region := self._open_region) is not None and region.after_ms is None:
                region.after_ms = piece.stamp_ms
            if piece.kind == Kind.BASE:
                self._meet_base(piece)
            else:
                self._copy(piece)
            self.stamp_ms = piece.stamp_ms
            read += piece.end - piece.offset
            self._on_progress(read, total)
            self._keep_safe()
        self._finish(queue_ends)

    # -- the state that is known -------------------------------------------------------------------

    def _begin(self) -> None:
        """Start from the first base frame; where it is lost, from what the frames behind it say."""
        base = self._hints.first_base(self._source)
        if base is not None:
            self._bridge.start_from(base)

    def _meet_damage(self, damage: Damage) -> None:
        if self._is_base_only(damage):
            self.damaged_bases.append(damage)
            return
        known_at = self._hints.offset
        if damage.start < known_at < damage.end:
            self._note_damage(replace(damage, end=known_at))
            self._meet_checkpoint(known_at)
            self._note_damage(replace(damage, start=known_at))
        else:
            self._meet_checkpoint(damage.start)
            self._note_damage(damage)

    def _is_base_only(self, damage: Damage) -> bool:
        """Whether a range is just the frame that opens a file, which holds what is known already."""
        if self._open_region is not None or damage.start not in self._source.starts:
            return False
        if damage.start == self._source.head > 0:
            return False
        (payload,) = self._store.indexes.base().parts()
        return damage.byte_count == frame_bytes(len(payload))

    def _note_damage(self, damage: Damage) -> None:
        below_seq = self._store.ledger.next_seq
        region = self._open_region
        if region is not None:
            region.grow(damage, below_seq)
        else:
            end = self._store.log.written_end
            self.regions.append(Region([damage], self.stamp_ms, below_seq, end))
            if damage.start == self._source.head == 0:
                self._bridge.note_beginning(self.regions[-1])

    def _meet_base(self, frame: Frame) -> None:
        self._know(Base.read(frame.payload), frame.stamp_ms)

    def _meet_checkpoint(self, offset: int) -> None:
        """Once the copy has come to where the index checkpoint was taken, all that it says is known."""
        base = self._hints.take_base(offset)
        if base is not None:
            self._know(base, self.stamp_ms or self._now_ms)

    def _know(self, base: Base, stamp_ms: int) -> None:
        region = self._open_region
        if region is None or base.next_seq < self._store.ledger.next_seq:
            return
        if region.damages[0].start > self._source.head:
            region.count(self._store.totals, base.totals)
        self._bridge.bring_to(base, stamp_ms, region)
        region.is_bounded = True

    # -- one frame --------------------------------------------------------------------------------

    def _copy(self, frame: Frame) -> None:
        region = self._open_region
        if region is not None:
            self._bridge.bring_before(frame, region)
        parts = self._parts(frame) if self.regions else [frame.payload]
        if frame.kind in (Kind.END, Kind.HALF):
            parts = self._placed(frame)
        with self._store.write() as tx:
            appended = tx.copy(frame.kind, parts, frame.stamp_ms, frame.version)
        self.frame_count += 1
        if frame.kind == Kind.HALF:
            self._note_half(frame, appended.offset)
        elif frame.kind == Kind.SEND_BACK and frame.offset >= self._settled_below:
            self.settlements += SendBack.read(frame.payload).settles

    def _parts(self, frame: Frame) -> list[Bytes]:
        """The payload of a frame behind a damaged range, its seqs of lost frames marked."""
        match frame.kind:
            case Kind.RELEASE:
                release = Release.read(frame.payload)
                seqs = self._marked(release.seqs)
                if seqs is release.seqs:
                    return [frame.payload]
                by_value = np.zeros(len(seqs), np.bool_)
                by_value[release.value_indexes] = True
                self.expired_releases += int(((seqs < 0) & ~by_value).sum())
                return _with_bytes_at(frame, release.seqs, seqs, 16 + release.groups.nbytes)
            case Kind.RE_ENTER:
                moved = ReEnter.read(frame.payload)
                return _with_bytes_at(frame, moved.old_seqs, self._marked(moved.old_seqs), 8)
            case Kind.TOPIC:
                change = TopicChange.read(frame.payload)
                return self._bridge.fitted(change).parts()
            case _:
                return [frame.payload]

    def _marked(self, seqs: I64) -> I64:
        """`~seq` in the place of seqs that are not pending here; the same array where all are."""
        ledger = self._store.ledger
        is_lost = (seqs >= ledger.head_seq) & ~ledger.pending_mask(seqs)
        return np.where(is_lost, ~seqs, seqs) if is_lost.any() else seqs

    # -- transactions -----------------------------------------------------------------------------

    def _placed(self, frame: Frame) -> list[Bytes]:
        """The payload of a frame that names places of halves, which lie elsewhere in the copy."""
        if frame.kind == Kind.END:
            end = End.read(frame.payload)
            place = self._places.pop(end.half_place, 0)
            rest = frame.payload[16:]
            return End(place, end.section, [rest] if len(rest) else []).parts()
        half = Half.read(frame.payload)
        places = [self._places.pop(place, 0) for place in half.replaces.tolist()]
        section = frame.payload[8 + 8 * len(places) :]
        return replace(half, replaces=np.array(places, np.uint64), section_parts=[section]).parts()

    def _note_half(self, frame: Frame, offset: int) -> None:
        for row in range(Half.read(frame.payload).section.count):
            self._places[frame.offset << 16 | row] = offset << 16 | row

    # -- keeping ----------------------------------------------------------------------------------

    def _keep_safe(self) -> None:
        end = self._store.log.written_end
        if end - self._synced_to < _SYNC_BYTES and not self._store.find.memory_is_full:
            return
        self._store.finish_all()
        self._synced_to = end
        if end - self._checkpoint_at >= _CHECKPOINT_BYTES or self._store.find.memory_is_full:
            self._store.checkpoint()
            self._checkpoint_at = end

    def _finish(self, queue_ends: dict[tuple[int, int], int]) -> None:
        self._meet_checkpoint(self._hints.offset)
        region = self._open_region
        if region is not None:
            self._bridge.raise_ends(queue_ends, self.stamp_ms or self._now_ms, region)
        if not self._store.log.written_end:
            self._bridge.write_state(self.stamp_ms or self._now_ms)
        self._store.finish_all()


def _with_bytes_at(frame: Frame, old: I64, new: I64, at: int) -> list[Bytes]:
    """The payload with one array of seqs, which lies at byte `at`, replaced."""
    if new is old:
        return [frame.payload]
    data = new.astype("<i8").tobytes()
    return [b"".join((frame.payload[:at], data, frame.payload[at + len(data) :]))]
