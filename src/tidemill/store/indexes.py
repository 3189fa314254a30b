"""Everything derived from the commit log, and the one way a frame changes it.

Owns entries, ledger, level queues, topics, find index, due counts, totals and open transactions, in step.
`apply_*` is called for every frame exactly once in log order: by the log writer right after it appended the
frame, and by recovery when the log is read again. What a frame does depends on the frame and the state
before it alone, so both come to the same state. Rows for queues and settled deliveries are returned, not
written: they must wait until the frame is safe.

The rule of the ledger: a frame acts on a seq only if it is pending at that point of the log. A seq below
the ledger's head was pending when the frame was written (the writer checks before it appends) and its
segment was cut since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.core.model import NO_TIME_MS
from tidemill.log.arrays import I64, Flags, Rows
from tidemill.log.disk import Disk
from tidemill.log.frame import Frame
from tidemill.log.row_table import MakeRoom
from tidemill.store.damage import Repairs
from tidemill.store.derivation import Derivation
from tidemill.store.due_counts import DueCounts
from tidemill.store.entries import SCAN_ROWS, EntryTable, pending_in, pending_with
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.find_pairs import pairs_in, pairs_of_messages, pairs_of_request
from tidemill.store.formats.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.entry_rows import entry_rows
from tidemill.store.formats.frames import (
    Base,
    Cancel,
    End,
    Gap,
    Half,
    Kind,
    ReEnter,
    Release,
    SendBack,
    Settlement,
    TopicChange,
)
from tidemill.store.formats.message_format import Columns, Section
from tidemill.store.formats.new_messages import Written
from tidemill.store.formats.queue_rows import direct_rows, released_rows
from tidemill.store.formats.request_format import Request
from tidemill.store.gaps import step_over
from tidemill.store.ledger import Ledger, State
from tidemill.store.level_queues import LevelQueues
from tidemill.store.open_transactions import OpenHalf, OpenTransactions
from tidemill.store.topic_histograms import TopicHistogram
from tidemill.store.topic_queues import Publication, grouped
from tidemill.store.topics import Topic, TopicTable
from tidemill.store.totals import Totals


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """Sizes of the derived files; tests make them small."""

    entry_chunk_rows: int = 1 << 20
    queue_chunk_rows: int = 1 << 18
    find_memory_pairs_max: int = 1 << 18


@dataclass(frozen=True, slots=True)
class Effects:
    """What a frame does outside the indexes, once it is safe."""

    publication: Publication | None = None
    settlements: tuple[Settlement, ...] = ()
    forgotten_topic_id: int | None = None


NO_EFFECTS = Effects()


@dataclass(slots=True)
class Indexes:
    """The derived state. Changed only by `apply_*`, under the log writer's lock."""

    entries: EntryTable
    find: FindIndex
    ledger: Ledger = field(default_factory=Ledger)
    topics: TopicTable = field(default_factory=TopicTable)
    due_counts: DueCounts = field(default_factory=DueCounts)
    totals: Totals = field(default_factory=Totals)
    open_transactions: OpenTransactions = field(default_factory=OpenTransactions)
    levels: LevelQueues = field(init=False)
    near_floor: int = 0
    level_floor: int = 0
    requested_delays: TopicHistogram | None = None  # of what is stored, from the first request on

    def __post_init__(self) -> None:
        self.levels = self._no_levels()
        self.entries.end_seq = lambda: self.ledger.next_seq

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: Path,
        make_room: MakeRoom,
        sizes: IndexSizes,
        derivation: Derivation,
        repairs: Repairs,
    ) -> Indexes:
        entries = EntryTable(
            disk, directory / "entries", sizes.entry_chunk_rows, make_room, derivation, repairs
        )
        find = FindIndex(disk, directory / "find", repairs, memory_pairs_max=sizes.find_memory_pairs_max)
        return cls(entries=entries, find=find)

    # -- one frame --------------------------------------------------------------------------------

    def apply(self, frame: Frame, released: Rows | None = None) -> Effects:
        """Apply a frame read back from the log. `released`: the entries a release names, where at hand."""
        payload, offset = frame.payload, frame.offset
        match frame.kind:
            case Kind.BASE:
                self._check_base(Base.read(payload), offset)
                return NO_EFFECTS
            case Kind.MESSAGES:
                return self._apply_messages(Section(payload), offset, frame.end, frame.stamp_ms)
            case Kind.RELEASE:
                return self._apply_release(frame, Release.read(payload), released)
            case Kind.CANCEL:
                return self._apply_cancel(frame, Cancel.read(payload))
            case Kind.RE_ENTER:
                return self._apply_re_enter(frame, ReEnter.read(payload))
            case Kind.HALF:
                return self._apply_half(frame, Half.read(payload))
            case Kind.END:
                return self._apply_end(frame, End.read(payload))
            case Kind.TOPIC:
                return self._apply_topic(TopicChange.read(payload))
            case Kind.SEND_BACK:
                return self._apply_send_back(frame, SendBack.read(payload))
            case Kind.GAP:
                return self._apply_gap(frame, Gap.read(payload))
            case unknown:
                raise CorruptionError(
                    f"frame of unknown kind {unknown} at offset {offset}; run `tidemill check`"
                )

    def apply_written(self, written: Written, offset: int, end: int, stamp_ms: int) -> Effects:
        """Apply a frame of messages that was just written, without reading it back."""
        return self._apply_messages(written, offset, end, stamp_ms)

    def apply_find_only(self, frame: Frame) -> None:
        """Bring only the find index up to date, for frames the checkpoint already covers."""
        if frame.offset >= self.find.covers:
            for pairs in pairs_in(frame):
                self.find.add(*pairs)

    # -- base and topics --------------------------------------------------------------------------

    def start_from(self, base: Base) -> None:
        """Take over what a base frame says: the state of a log that begins here."""
        self.ledger = Ledger(base.next_seq)
        self.near_floor = self.level_floor = base.next_seq
        self.levels = self._no_levels()
        self.topics = TopicTable()
        for fields in base.topics:
            topic = Topic.from_dict(fields)
            self.topics.put(topic)
            self.topics.set_offsets(topic.id, base.next_offsets[str(topic.id)])
        self.topics.next_topic_id = max(self.topics.next_topic_id, int(base.totals.get("next_topic_id", 1)))
        self.due_counts = DueCounts()
        self.totals = Totals.from_dict(base.totals)
        self.open_transactions = OpenTransactions()

    def base(self) -> Base:
        """The base frame for a segment that begins at this point of the log."""
        return Base(
            next_seq=self.ledger.next_seq,
            topics=[topic.as_dict() for topic in self.topics],
            next_offsets={str(topic.id): self.topics.offsets_of(topic) for topic in self.topics},
            totals={**self.totals.as_dict(), "next_topic_id": self.topics.next_topic_id},
        )

    def _check_base(self, base: Base, offset: int) -> None:
        if base.next_seq != self.ledger.next_seq:
            raise CorruptionError(
                f"the base frame at offset {offset} says the next seq is {base.next_seq}, "
                f"the log before it says {self.ledger.next_seq}; run `tidemill rebuild`"
            )

    def _apply_topic(self, change: TopicChange) -> Effects:
        topic = Topic.from_dict(change.topic)
        if not change.is_deleted:
            self.topics.put(topic)
            return NO_EFFECTS
        self._cancel_topic(topic.id, change.cancel_below_seq)
        self.totals.count_cancelled(np.array([topic.id]), np.array([change.cancelled_count]))
        self.topics.remove(topic.id)
        self.open_transactions.forget_topic(topic.id)
        return Effects(forgotten_topic_id=topic.id)

    def _cancel_topic(self, topic_id: int, below_seq: int) -> None:
        first = self.ledger.head_seq
        while first < below_seq:
            end = min(below_seq, first + SCAN_ROWS)
            pending = self.ledger.range_states(first, end) == State.PENDING
            rows = self.entries.read(first, end, pending)
            seqs = first + np.flatnonzero(pending & (rows["topic_id"] == topic_id))
            self._cancel(seqs)
            first = end

    def _apply_gap(self, frame: Frame, gap: Gap) -> Effects:
        publication = step_over(frame, gap, self.ledger, self.entries, self.topics)
        if gap.totals is not None:
            self.totals = Totals.from_dict(gap.totals)
        return Effects(publication)

    # -- messages ---------------------------------------------------------------------------------

    def _apply_messages(self, section: Section | Written, offset: int, end: int, stamp_ms: int) -> Effects:
        columns = section.columns()
        timed = section.timed if isinstance(section, Written) else columns.timed_rows
        self._add_to_find(offset, section, columns, timed)
        rows = self._add_timed(offset, section, columns, timed)
        if rows is not None and self.requested_delays is not None:
            self.requested_delays.note(rows["topic_id"], rows["deliver_at_ms"] - rows["stored_at_ms"])
        self.totals.count_sent(columns.topic_id)
        if len(timed) == section.count:
            return NO_EFFECTS
        return Effects(self._publish_direct(offset, end, stamp_ms, columns))

    def _apply_send_back(self, frame: Frame, sent_back: SendBack) -> Effects:
        effects = self._apply_messages(sent_back.section, frame.offset, frame.end, frame.stamp_ms)
        return Effects(effects.publication, tuple(sent_back.settles))

    def _apply_half(self, frame: Frame, half: Half) -> Effects:
        for row, message in enumerate(half.section.messages()):
            place = frame.offset << 16 | row
            # One that replaces another was open when it was written, though that one may have been cut since.
            self.open_transactions.open(OpenHalf(place, message.topic_id, message.id, message.stored_at_ms))
        return NO_EFFECTS

    def _apply_end(self, frame: Frame, end: End) -> Effects:
        self.open_transactions.end(end.half_place)
        if end.section is None:
            return NO_EFFECTS
        return self._apply_messages(end.section, frame.offset, frame.end, frame.stamp_ms)

    def _add_timed(
        self, offset: int, section: Section | Written, columns: Columns, timed: I64
    ) -> Rows | None:
        if not len(timed):
            return None
        self._check_first_seq(section, offset)
        rows = entry_rows(offset, columns, timed)
        first_seq = self.ledger.grow(len(timed))
        self.entries.write(first_seq, rows)
        self.due_counts.add(rows["topic_id"], rows["deliver_at_ms"], 1)
        if section.has_levels:
            self.levels.add(np.arange(first_seq, first_seq + len(rows)), rows)
        return rows

    def _check_first_seq(self, section: Section | Written, offset: int) -> None:
        if section.first_seq != self.ledger.next_seq:
            raise CorruptionError(
                f"the frame at offset {offset} begins at seq {section.first_seq}, expected "
                f"{self.ledger.next_seq}; run `tidemill rebuild`"
            )

    def _add_to_find(self, offset: int, section: Section | Written, columns: Columns, timed: I64) -> None:
        if offset >= self.find.covers:
            self.find.add(*pairs_of_messages(offset, section, columns, timed))

    def _add_request(self, offset: int, request: Request | None) -> None:
        if request is not None and offset >= self.find.covers:
            self.find.add(*pairs_of_request(offset, request))

    def _publish_direct(self, offset: int, end: int, stamp_ms: int, columns: Columns) -> Publication:
        direct = (columns.deliver_at_ms == NO_TIME_MS).nonzero()[0]
        topic_ids, queue_ids = columns.topic_id[direct], columns.queue_id[direct]
        partitions, offsets = self.topics.partitions(topic_ids, queue_ids), columns.queue_offset[direct]
        order, starts, counts = grouped(partitions)
        rows = direct_rows(offset, direct[order], stamp_ms)
        self.topics.take_offsets(partitions, offsets + 1)
        firsts = order[starts]
        queues = list(zip(topic_ids[firsts].tolist(), queue_ids[firsts].tolist(), strict=True))
        return Publication(end, queues, offsets[firsts].tolist(), counts.tolist(), rows)

    # -- moving and settling ----------------------------------------------------------------------

    def _apply_cancel(self, frame: Frame, cancel: Cancel) -> Effects:
        self._add_request(frame.offset, cancel.request)
        self._cancel(cancel.seqs[cancel.seqs >= self.ledger.head_seq])
        self.totals.count_cancelled(cancel.topic_ids, cancel.counts)
        return NO_EFFECTS

    def _cancel(self, seqs: I64) -> None:
        self._settled_rows(seqs[self.ledger.settle(seqs, State.CANCELLED)])

    def _apply_release(self, frame: Frame, release: Release, entries: Rows | None) -> Effects:
        known, rows = self._known_entries(release.seqs, entries)
        acted = np.ones(len(release.seqs), np.bool_)
        acted[known] = self.ledger.settle(release.seqs[known], State.RELEASED)
        if not acted.all():
            raise CorruptionError(
                f"the release at offset {frame.offset} names a message that was not pending; "
                "run `tidemill check`"
            )
        self._waits_no_more(rows if known.all() else rows[known])
        queue_rows = released_rows(frame, release, rows)
        groups = release.groups
        topic_ids = groups["topic_id"]
        self.topics.take_offsets(
            self.topics.partitions(topic_ids, groups["queue_id"]), groups["first_offset"] + groups["count"]
        )
        self.totals.count_released(topic_ids, groups["count"])
        queues = list(zip(topic_ids.tolist(), groups["queue_id"].tolist(), strict=True))
        return Effects(
            Publication(
                frame.end, queues, groups["first_offset"].tolist(), groups["count"].tolist(), queue_rows
            )
        )

    def _apply_re_enter(self, frame: Frame, moved: ReEnter) -> Effects:
        known, _ = self._known_entries(moved.old_seqs)
        acted = np.ones(len(moved.old_seqs), np.bool_)
        acted[known] = self.ledger.settle(moved.old_seqs[known], State.MOVED)
        self._settled_rows(moved.old_seqs[known & acted])
        columns = moved.section.columns()
        timed = columns.timed_rows
        self._add_to_find(frame.offset, moved.section, columns, timed)
        self._add_request(frame.offset, moved.request)
        first_seq = self.ledger.next_seq
        self._add_timed(frame.offset, moved.section, columns, timed)
        stillborn = first_seq + np.flatnonzero(~acted)
        self.ledger.settle(stillborn, State.MOVED)
        self._settled_rows(stillborn)
        self.totals.moved += len(moved.old_seqs)
        return NO_EFFECTS

    def _known_entries(self, seqs: I64, entries: Rows | None = None) -> tuple[Flags, Rows]:
        """Which seqs are at or above the head, and the entries (zeros where unknown)."""
        known = seqs >= self.ledger.head_seq
        if known.all():
            return known, self.entries.take(seqs) if entries is None else entries
        rows = np.zeros(len(seqs), ENTRY)
        rows["deliver_at_ms"] = NO_TIME_MS
        rows[known] = self.entries.take(seqs[known])
        return known, rows

    def _settled_rows(self, seqs: I64) -> Rows:
        """Entries of seqs that just left the pending state, counted out of what is due."""
        rows = self.entries.take(seqs)
        self._waits_no_more(rows)
        return rows

    def _waits_no_more(self, rows: Rows) -> None:
        self.due_counts.add(rows["topic_id"], rows["deliver_at_ms"], -1)
        self.levels.settled(rows)

    def cut_head(self, below_seq: int) -> None:
        """Forget seqs below `below_seq`; their bytes are gone and none of them is pending."""
        self.ledger.cut_head(below_seq)
        self.entries.cut_head(below_seq)
        self.levels.cut_head(below_seq)

    # -- what the releaser holds ------------------------------------------------------------------

    def pending_near(self) -> I64:
        """Seqs of the near messages that still wait; moves the lower bound up to the lowest of them."""
        seqs = pending_with(FLAG_NEAR, self.entries, self.ledger, self.near_floor)
        self.near_floor = int(seqs[0]) if len(seqs) else self.ledger.next_seq
        return seqs

    def find_levels(self) -> None:
        """Fill the level queues from the entries: what waits on a level is at or above the lower bound."""
        self.levels = self._no_levels()
        seqs = pending_with(FLAG_LEVEL, self.entries, self.ledger, self.level_floor)
        self.levels.add(seqs, self.entries.take(seqs))

    def move_near_floor(self, end_seq: int, rows_max: int) -> bool:
        """Move the lower bound up to the lowest near seq that waits; True: only past `rows_max` entries."""
        first = max(self.near_floor, self.ledger.head_seq)
        stop = min(end_seq, (first // rows_max + 1) * rows_max)  # no part spans two chunks of the table
        waiting = pending_in(FLAG_NEAR, self.entries, self.ledger, first, stop)
        self.near_floor = int(waiting[0]) if len(waiting) else max(first, stop)
        return not len(waiting) and stop < end_seq

    def move_level_floor(self) -> None:
        """Move the lower bound up to the lowest seq that waits on a level."""
        first = self.levels.first_waiting_seq()
        self.level_floor = self.ledger.next_seq if first is None else first

    def _no_levels(self) -> LevelQueues:
        return LevelQueues(lambda seqs: self.ledger.pending_mask(seqs))
