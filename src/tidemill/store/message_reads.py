"""Messages read back from the commit log, and found by id and key.

Every frame is verified when it is read (`log/segment.py`). A message whose bytes are damaged is never
returned: `message` raises `DamagedFrameError`, `messages` has None in its place, and the frame is noted.

A damaged message is still found: by the hashes of its id and keys, which the find index holds. Two texts of a
topic with one 64-bit hash are taken for the same there, as a handle's id is everywhere.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tidemill.core.errors import DamagedFrameError
from tidemill.core.model import NO_SEQ, NO_TIME_MS, StoredMessage
from tidemill.log.arrays import I64, U64, Flags, Rows
from tidemill.log.frame import COPY_BYTES_MAX, Frame
from tidemill.log.segments import SegmentedLog
from tidemill.store.damage import DamagedFrames
from tidemill.store.find.find_runs import PLACE_BIT, places_in
from tidemill.store.find.hashing import id_hash, key_hash
from tidemill.store.formats.frame_contents import section_in
from tidemill.store.formats.message_format import Section
from tidemill.store.index_access import IndexAccess
from tidemill.store.indexes import Indexes
from tidemill.store.ledger import State

_SECTIONS_KEPT = 16


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message that was found by a key: its seq if it is timed, and its place in the log."""

    message: StoredMessage | None  # None: its bytes are damaged
    seq: int
    place: int


class MessageReads(IndexAccess):
    """Reads of a store. Thread-safe, but for the finding: call that under the writer lock."""

    def __init__(self, log: SegmentedLog, indexes: Indexes) -> None:
        super().__init__(indexes)
        self.log = log
        self.damaged = DamagedFrames()
        self._sections: OrderedDict[int, tuple[Frame, Section]] = OrderedDict()
        self._sections_lock = threading.Lock()  # protects _sections

    # -- reading ----------------------------------------------------------------------------------

    def message(self, place: int) -> StoredMessage:
        """The message at a place in the log, not cut off; `DamagedFrameError` if it cannot be read."""
        return self.section(place >> 16).message(place & 0xFFFF)

    def readable(self, place: int) -> StoredMessage | None:
        """The message at a place in the log, which must not be cut; None if its bytes are damaged."""
        return self.messages([place])[0]

    def messages(self, places: Sequence[int]) -> list[StoredMessage | None]:
        """The messages at these places, in their order; None where the bytes are damaged.

        Neighbours of a frame are read together.
        """
        found: list[StoredMessage | None] = []
        for frame_offset, of_frame in groupby(places, lambda place: place >> 16):
            rows = [place & 0xFFFF for place in of_frame]
            section = self.readable_section(frame_offset)
            found += [None] * len(rows) if section is None else section.messages_at(rows)
        return found

    def queue_offset(self, place: int) -> int:
        """The queue offset of a message that went there at once; `DamagedFrameError` if unreadable."""
        return int(self.section(place >> 16).queue_offsets(np.array([place & 0xFFFF]))[0])

    def is_expired(self, place: int) -> bool:
        """True when the bytes at this place were cut off with the head."""
        return place >> 16 < self.log.head or place == 0

    def section(self, frame_offset: int) -> Section:
        """The messages of a frame, which must not be cut. `DamagedFrameError` if it does not read back."""
        with self._sections_lock:
            kept = self._sections.get(frame_offset)
            if kept is not None:
                self._sections.move_to_end(frame_offset)
        if kept is not None and len(kept[0].payload) <= COPY_BYTES_MAX:
            return kept[1]  # made from a copy, which was verified
        frame = self._frame(frame_offset)
        if kept is not None and kept[0] is frame:
            return kept[1]
        section = section_in(frame.kind, frame.payload)
        with self._sections_lock:
            self._sections[frame_offset] = frame, section
            if len(self._sections) > _SECTIONS_KEPT:
                self._sections.popitem(last=False)
        return section

    def _frame(self, offset: int) -> Frame:
        try:
            return self.log.frame(offset)
        except DamagedFrameError as error:
            if offset >= self.log.head:  # else it was cut meanwhile
                self.damaged.note(error)
            raise

    def are_readable(self, seqs: I64) -> Flags:
        """Which of these timed messages, none of which is cut, read back."""
        frames = self.entries.take(seqs)["place"] >> np.uint64(16)
        damaged = [offset for offset in np.unique(frames).tolist() if not self._reads_back(offset)]
        return np.isin(frames, np.array(damaged, np.uint64), invert=True)

    def _reads_back(self, frame_offset: int) -> bool:
        try:
            self._frame(frame_offset)
        except DamagedFrameError:
            return False
        return True

    def readable_section(self, frame_offset: int) -> Section | None:
        """The messages of a frame, which must not be cut; None if it does not read back."""
        try:
            return self.section(frame_offset)
        except DamagedFrameError:
            return None

    def stored_by_ms(self, place: int) -> int:
        """When the message at a place was stored; a damaged one at the latest. `NO_TIME_MS`: not known."""
        message = self.readable(place)
        if message is not None:
            return message.stored_at_ms
        frame = self.log.frame_after(place >> 16)
        return NO_TIME_MS if frame is None else frame.stamp_ms

    def entry(self, seq: int) -> Rows:
        """The entry of a seq at or above the head."""
        row: Rows = self.entries.take(np.array([seq]))[0]
        return row

    # -- finding ----------------------------------------------------------------------------------

    def seqs_with_id(self, topic_id: int, message_id: str) -> list[int]:
        """Seqs, newest first, of the timed messages with this id; not those they moved on from."""
        candidates = self._candidates(id_hash(topic_id, message_id))
        return [
            seq for seq in candidates if self._is_meant(self._place_of(seq), lambda m: m.id == message_id)
        ]

    def seqs_with_key(self, topic_id: int, key: str, *, with_damaged: bool = True) -> list[int]:
        """Pending seqs, oldest first, of the timed messages with this key; the damaged ones if wanted."""
        seqs = reversed(self._candidates(key_hash(topic_id, key), is_pending=True))
        found = ((seq, self.readable(self._place_of(seq))) for seq in seqs)
        return [seq for seq, m in found if (with_damaged if m is None else key in m.keys)]

    def messages_with_key(
        self, topic_id: int, key: str, bytes_max: int, count_max: int
    ) -> list[KeyedMessage]:
        """Messages with this key whose bytes are still there, timed or not, whatever became of them.

        Newest first; ends with the one whose body takes it over `bytes_max`. No more bodies than those are
        held at once: a key may have been used for years.
        """
        found: list[tuple[int, int, int]] = []  # stored at, seq, place
        for seq in self._candidates(key_hash(topic_id, key)):
            entry = self.entry(seq)
            if self._is_meant(int(entry["place"]), lambda m: key in m.keys):
                found.append((int(entry["stored_at_ms"]), seq, int(entry["place"])))
        places = self.places_with_key(topic_id, key)
        found += [(self.stored_by_ms(place), NO_SEQ, place) for place in places]
        newest, space = list[KeyedMessage](), bytes_max
        for _, seq, place in sorted(found, key=lambda one: -one[0])[:count_max]:
            if space <= 0:
                break
            message = self.readable(place)
            newest.append(KeyedMessage(message, seq, place))
            space -= len(message.body) if message is not None else 0
        return newest

    def places_with_id(self, topic_id: int, message_id: str) -> list[int]:
        """Places, newest first, of the untimed messages with this id."""
        return self._places(id_hash(topic_id, message_id), lambda m: m.id == message_id)

    def places_with_key(self, topic_id: int, key: str) -> list[int]:
        """Places, newest first, of the untimed messages with this key."""
        return self._places(key_hash(topic_id, key), lambda m: key in m.keys)

    def _places(self, hashed: int, matches: Callable[[StoredMessage], bool]) -> list[int]:
        places = places_in(self._refs(hashed))[::-1].tolist()
        return [p for p in places if not self.is_expired(p) and self._is_meant(p, matches)]

    def _is_meant(self, place: int, matches: Callable[[StoredMessage], bool]) -> bool:
        """Whether the message at a place, whose hash fits, is one that is looked for. A damaged one is."""
        message = self.readable(place)
        return message is None or matches(message)

    def _candidates(self, hashed: int, *, is_pending: bool = False) -> list[int]:
        """Seqs, newest first, that may be meant. A key pushed on a thousand times has a thousand refs."""
        refs, ledger = self._refs(hashed), self.ledger
        seqs = refs[refs < PLACE_BIT].astype(np.int64)
        seqs = seqs[(seqs >= ledger.head_seq) & (seqs < ledger.next_seq)]
        states = ledger.states(seqs)
        wanted = states == State.PENDING if is_pending else states != State.MOVED
        return [int(seq) for seq in seqs[wanted][::-1]]

    def _refs(self, hashed: int) -> U64:
        """What may be meant, ascending, each once: a message may have the same key several times."""
        refs: U64 = np.unique(self.find.find(hashed))
        return refs

    def _place_of(self, seq: int) -> int:
        return int(self.entry(seq)["place"])
