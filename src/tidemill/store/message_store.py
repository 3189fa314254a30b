"""The face of the store floor: one data directory's truth and its indexes, opened, read, kept and closed.

Owns the parts and their wiring: commit log, consumer log, indexes, queues, ballast, checkpoints. Writing
goes through `writer` (commit_log.py) and `consumers` (consumer_log.py); this module reads messages back,
finds them, and takes checkpoints; `moving.py` reschedules, `head_cut.py` applies retention. It knows no
clock: whoever calls says what time it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from tidemill.core.errors import DiskFull
from tidemill.core.limits import DAY_MS, MIB, SEGMENT_BYTES
from tidemill.core.model import NO_SEQ, StoredMessage
from tidemill.log.arrays import U64, Rows
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.log.group_commit import GroupCommit
from tidemill.log.segments import SegmentedLog
from tidemill.store.ballast import Ballast
from tidemill.store.commit_log import CommitLog
from tidemill.store.consumer_log import CONSUMERS_NAME, ConsumerLog
from tidemill.store.damage import Repairs
from tidemill.store.derivation import Derivation
from tidemill.store.disk_room import DiskRoom
from tidemill.store.find_runs import PLACE_BIT, places_in
from tidemill.store.find_upkeep import SCRUB_BYTES, FindUpkeep
from tidemill.store.frame_contents import section_in
from tidemill.store.frames import Kind
from tidemill.store.hashing import id_hash, key_hash
from tidemill.store.index_checkpoint import INDEX_FORMAT, note_indexes
from tidemill.store.indexes import Indexes, IndexSizes
from tidemill.store.ledger import State
from tidemill.store.message_format import Section
from tidemill.store.recovery import Progress, recover, settlements_in
from tidemill.store.topic_queues import TopicQueues

_SECTIONS_KEPT = 16
# How many entries are looked at under one hold of the writer lock, to move the floor of what is near.
_FLOOR_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes and promises of a store; tests make the sizes small."""

    segment_bytes: int = SEGMENT_BYTES
    consumer_segment_bytes: int = 8 * MIB
    ballast_bytes: int = 64 * MIB
    commits_in_flight: int = 4
    is_sync: bool = True
    retention_ms: int = 3 * DAY_MS
    sizes: IndexSizes = field(default_factory=IndexSizes)


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message that was found by a key: by its seq if it is timed, else by its place in the log."""

    message: StoredMessage
    seq: int
    place: int = 0


class MessageStore:
    """An open data directory."""

    def __init__(
        self, disk: Disk, directory: Path, settings: StoreSettings, on_progress: Progress | None = None
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.repairs = Repairs()
        self.ballast = Ballast(disk, directory / "ballast", settings.ballast_bytes)
        self.log = SegmentedLog(
            disk,
            directory / "log",
            segment_bytes=settings.segment_bytes,
            opening=lambda _: self._opening(),
            make_room=self.ballast.throw_some,
        )
        index_directory = directory / "index"
        disk.make_dir(index_directory)
        sizes, derivation = settings.sizes, Derivation(self.log)
        self.indexes = Indexes.create(
            disk, index_directory, self.ballast.throw_some, sizes, derivation, self.repairs
        )
        self.queues = TopicQueues(
            disk,
            index_directory / "queues",
            self.ballast.throw_some,
            sizes.queue_chunk_rows,
            derivation,
            self.repairs,
        )
        self.consumers = ConsumerLog(
            disk,
            directory / CONSUMERS_NAME,
            segment_bytes=settings.consumer_segment_bytes,
            in_flight_max=settings.commits_in_flight,
            is_sync=settings.is_sync,
            make_room=self.ballast.throw_some,
        )
        self._checkpoint = Checkpoint(disk, index_directory, "checkpoint", INDEX_FORMAT)
        recovered = recover(self.log, self.indexes, self.queues, self._checkpoint, on_progress)
        self._checkpoint_offset = recovered.checkpoint_offset
        self.consumers.recover()
        missed = settlements_in(self.log, self.consumers.settled_below, recovered.checkpoint_offset)
        self.consumers.settle_again([*missed, *recovered.settlements])
        self._clamp_consumers()
        self.ballast.fill()
        self.room = DiskRoom(disk, directory, self.log, self.ballast)
        commit = GroupCommit(self.log, in_flight_max=settings.commits_in_flight, is_sync=settings.is_sync)
        self.writer = CommitLog(
            self.log, commit, self.indexes, self.queues, self.room, self.consumers.settle_from_commit_log
        )
        self.room.look()
        self._find_upkeep = FindUpkeep(self.indexes.find, self.log, self.writer.lock, self.writer.finish_all)
        with suppress(DiskFull):  # the maintenance service derives the rest when there is space again
            self._find_upkeep.derive_lost()
        self._sections: OrderedDict[int, Section] = OrderedDict()
        self._sections_lock = threading.Lock()  # protects _sections
        self.upkeep_lock = threading.Lock()  # one checkpoint, head cut or backup at a time

    def _opening(self) -> tuple[int, bytes]:
        (payload,) = self.indexes.base().parts()
        return Kind.BASE, bytes(payload)

    def _clamp_consumers(self) -> None:
        for lane, _ in self.consumers.state.lanes():
            _, topic_id, queue_id = lane
            if self.indexes.topics.by_id(topic_id) is None:
                self.consumers.state.forget_topic(topic_id)
            else:
                self.consumers.state.clamp(lane, self.queues.end((topic_id, queue_id)))

    # -- reading ----------------------------------------------------------------------------------

    def message(self, place: int) -> StoredMessage:
        """The message at a place in the log, which must not be cut."""
        return self.section(place >> 16).message(place & 0xFFFF)

    def messages(self, places: Sequence[int]) -> list[StoredMessage]:
        """The messages at these places, in their order; neighbours of a frame are read together."""
        found: list[StoredMessage] = []
        for frame_offset, of_frame in groupby(places, lambda place: place >> 16):
            found += self.section(frame_offset).messages_at([place & 0xFFFF for place in of_frame])
        return found

    def identity(self, place: int) -> tuple[str, int]:
        """Id and stored-at ms of the message at a place; the rest of it is not read."""
        return self.section(place >> 16).identity(place & 0xFFFF)

    def queue_offset(self, place: int) -> int:
        """Where in its queue a message is that went there at once."""
        return int(self.section(place >> 16).queue_offsets(np.array([place & 0xFFFF]))[0])

    def is_expired(self, place: int) -> bool:
        """True when the bytes at this place were cut off with the head."""
        return place >> 16 < self.log.head or place == 0

    def section(self, frame_offset: int) -> Section:
        """The messages of a frame, which must not be cut."""
        with self._sections_lock:
            section = self._sections.get(frame_offset)
            if section is not None:
                self._sections.move_to_end(frame_offset)
                return section
        frame = self.log.frame(frame_offset)
        section = section_in(frame.kind, frame.payload)
        with self._sections_lock:
            self._sections[frame_offset] = section
            if len(self._sections) > _SECTIONS_KEPT:
                self._sections.popitem(last=False)
        return section

    def entry(self, seq: int) -> Rows:
        """The entry of a seq at or above the head."""
        row: Rows = self.indexes.entries.take(np.array([seq]))[0]
        return row

    # -- finding ----------------------------------------------------------------------------------

    def seqs_with_id(self, topic_id: int, message_id: str) -> list[int]:
        """Seqs, newest first, of the timed messages with this id; not those they moved on from."""
        candidates = self._candidates(id_hash(topic_id, message_id))
        return [seq for seq in candidates if self._read_entry(seq).id == message_id]

    def seqs_with_key(self, topic_id: int, key: str) -> list[int]:
        """Pending seqs, oldest first, of the timed messages with this key."""
        candidates = self._candidates(key_hash(topic_id, key), is_pending=True)
        return [seq for seq in reversed(candidates) if key in self._read_entry(seq).keys]

    def messages_with_key(
        self, topic_id: int, key: str, bytes_max: int, count_max: int
    ) -> list[KeyedMessage]:
        """Messages with this key whose bytes are still there, timed or not, whatever became of them.

        Newest first; ends with the one whose body takes it over `bytes_max`. No more bodies than those are
        held at once: a key may have been used for years.
        """
        found: list[tuple[int, int, int]] = []  # stored at, seq, place
        for seq in self._candidates(key_hash(topic_id, key)):
            message = self._read_entry(seq)
            if key in message.keys:
                found.append((message.stored_at_ms, seq, 0))
        places = self.places_with_key(topic_id, key)
        found += [(self.identity(place)[1], NO_SEQ, place) for place in places]
        newest, room = list[KeyedMessage](), bytes_max
        for _, seq, place in sorted(found, key=lambda one: -one[0])[:count_max]:
            if room <= 0:
                break
            message = self.message(place) if seq == NO_SEQ else self._read_entry(seq)
            newest.append(KeyedMessage(message, seq, place))
            room -= len(message.body)
        return newest

    def places_with_id(self, topic_id: int, message_id: str) -> list[int]:
        """Places, newest first, of the untimed messages with this id."""
        return self._places(id_hash(topic_id, message_id), lambda m: m.id == message_id)

    def places_with_key(self, topic_id: int, key: str) -> list[int]:
        """Places, newest first, of the untimed messages with this key."""
        return self._places(key_hash(topic_id, key), lambda m: key in m.keys)

    def _places(self, hashed: int, matches: Callable[[StoredMessage], bool]) -> list[int]:
        places = places_in(self._refs(hashed))[::-1].tolist()
        return [p for p in places if not self.is_expired(p) and matches(self.message(p))]

    def _candidates(self, hashed: int, *, is_pending: bool = False) -> list[int]:
        """Seqs, newest first, that may be meant. A key pushed on a thousand times has a thousand refs."""
        refs, ledger = self._refs(hashed), self.indexes.ledger
        seqs = refs[refs < PLACE_BIT].astype(np.int64)
        seqs = seqs[(seqs >= ledger.head_seq) & (seqs < ledger.next_seq)]
        states = ledger.states(seqs)
        wanted = states == State.PENDING if is_pending else states != State.MOVED
        return [int(seq) for seq in seqs[wanted][::-1]]

    def _refs(self, hashed: int) -> U64:
        """What may be meant, ascending, each once: a message may have the same key several times."""
        refs: U64 = np.unique(self.indexes.find.find(hashed))
        return refs

    def _read_entry(self, seq: int) -> StoredMessage:
        return self.message(int(self.entry(seq)["place"]))

    # -- keeping ----------------------------------------------------------------------------------

    def look_for_room(self) -> None:
        """Fill up what is kept back, see whether sends can be taken again, and say if they soon cannot."""
        self.ballast.fill()
        with self.writer.lock:
            self.log.room.look_again()
            self.room.look()

    @property
    def bytes_since_checkpoint(self) -> int:
        return self.log.written_end - self._checkpoint_offset

    def checkpoint(self) -> None:
        """Save the derived state, so that opening has less to read. A full disk puts it off."""
        with self.upkeep_lock:
            try:
                self._save_checkpoint()
            except DiskFull:
                return

    def _save_checkpoint(self) -> None:
        """Under the lock it is only noted how things are: all that takes long goes on beside the writer."""
        self._move_near_floor()
        with self.writer.lock:
            self.indexes.move_level_floor()
            noted = note_indexes(self.indexes, self.log.written_end)
        content = noted.encode()
        self.writer.finish_all()
        self._find_upkeep.save()
        self.consumers.save(noted.offset)
        self._sync_entries()
        self.queues.sync()
        self._checkpoint.save_parts(content, sync=True)
        self._checkpoint_offset = noted.offset

    def look_after_find(self, scrub_bytes: int = SCRUB_BYTES) -> bool:
        """Verify a part of the find index, or derive again a part that was damaged; True: more is lost."""
        with self.upkeep_lock:
            return self._find_upkeep.step(scrub_bytes)

    def _move_near_floor(self) -> None:
        end_seq = self.indexes.ledger.next_seq
        has_more = True
        while has_more:
            with self.writer.lock:
                has_more = self.indexes.move_near_floor(end_seq, _FLOOR_ROWS)

    def _sync_entries(self) -> None:
        entries = self.indexes.entries
        with self.writer.lock:
            begun = entries.begin_sync()
        try:
            begun.run()
        except BaseException:
            with self.writer.lock:
                entries.undo_sync(begun)
            raise

    def value_below(self, now_ms: int) -> int:
        """Bytes below this log offset are older than half the retention: release those by value."""
        below = self.log.head
        starts = self.log.segment_starts()
        for start in starts[1:]:
            if self.log.frame(start).stamp_ms > now_ms - self.settings.retention_ms // 2:
                break
            below = start
        return below

    # -- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything safe, take a checkpoint and let go of the files."""
        self.writer.finish_all()
        self.checkpoint()
        self.release_files()

    def release_files(self) -> None:
        """Let go of the files without writing anything."""
        self.writer.close()
        self.log.close()
        self.consumers.close()
        self.indexes.entries.close()
        self.indexes.find.close()
        self.queues.close()
