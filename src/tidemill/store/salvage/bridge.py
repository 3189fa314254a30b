"""Bringing the copy over a damaged range: to the state that is known behind it.

Owns what is written in the place of lost frames: gaps, which keep seqs and queue offsets as they were, and
topic frames, for topics that lost frames made, changed or deleted. Each is noted in the region.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.core.model import TopicType
from tidemill.log.frame import Frame
from tidemill.store.formats.frames import GAP_FORMAT, Base, Gap, Kind, TopicChange
from tidemill.store.message_store import MessageStore
from tidemill.store.salvage.demands import Demands, demands_of
from tidemill.store.salvage.hints import Hints
from tidemill.store.salvage.region import PartitionKey, Region
from tidemill.store.topics import Topic

# Rows that one gap stands for, of entries or of one queue.
_ROWS_MAX = 1 << 20


class Bridge:
    """Writes what stands for lost frames."""

    def __init__(self, store: MessageStore, hints: Hints) -> None:
        self._store = store
        self._indexes = store.indexes
        self._hints = hints

    def start_from(self, base: Base) -> None:
        """Begin the copy with the state of a base frame."""
        self._store.start_from(base)

    def write_state(self, stamp_ms: int) -> None:
        """Put the known state into a copy that has no frame, as the base of its first file."""
        present = self._indexes.base()
        self._write(Gap(present.next_seq, present.next_seq, [], present.totals), stamp_ms)

    def note_beginning(self, region: Region) -> None:
        """The very beginning of a log is lost: all that the copy's first state says was given away is."""
        if self._indexes.ledger.next_seq:
            region.lost_seqs.append((0, self._indexes.ledger.next_seq))
        for topic in self._indexes.topics:
            for queue_id, end in enumerate(self._indexes.topics.offsets_of(topic)):
                if end:
                    region.lost_offsets.append((topic.id, queue_id, 0, end))

    def bring_to(self, base: Base, stamp_ms: int, region: Region) -> None:
        """Bring the copy to a state that is known as a whole."""
        wanted = {fields["id"]: Topic.from_dict(fields) for fields in base.topics}
        for topic in self._indexes.topics:
            if topic.id not in wanted:
                self._delete(topic, stamp_ms, region)
        for topic in wanted.values():
            known = self._indexes.topics.by_id(topic.id)
            if known is not None and known.queue_count > topic.queue_count:
                continue  # queues are never taken away: what is known from frames is newer
            if self._indexes.topics.by_id(topic.id) != topic:
                self._put(topic, stamp_ms, region)
        self._skip_seqs(base.next_seq, stamp_ms, region)
        ends = {
            (topic_id, queue_id): end
            for topic_id in wanted
            for queue_id, end in enumerate(base.next_offsets[str(topic_id)])
        }
        self._skip_offsets(ends, stamp_ms, region)
        present = self._indexes.base()
        if present.totals != base.totals:
            self._write(Gap(present.next_seq, present.next_seq, [], base.totals), stamp_ms)

    def bring_before(self, frame: Frame, region: Region) -> None:
        """Bring the copy to a state in which this frame can be applied."""
        if frame.kind == Kind.TOPIC:
            self._make_room_for(TopicChange.read(frame.payload), frame.stamp_ms, region)
            return
        demands = demands_of(frame)
        self._meet_topics(demands, frame.stamp_ms, region)
        if demands.next_seq > self._indexes.ledger.next_seq:
            self._skip_seqs(demands.next_seq, frame.stamp_ms, region)
        self._skip_offsets(demands.offsets, frame.stamp_ms, region)
        region.confirmed.update(demands.offsets)

    def raise_ends(self, ends: dict[PartitionKey, int], stamp_ms: int, region: Region) -> None:
        """Where the end of the log is lost: keep offsets from being given away again."""
        known = {
            (topic_id, queue_id): end
            for (topic_id, queue_id), end in ends.items()
            if (topic := self._indexes.topics.by_id(topic_id)) is not None and queue_id < topic.queue_count
        }
        self._skip_offsets(known, stamp_ms, region)

    # -- topics -----------------------------------------------------------------------------------

    def _make_room_for(self, change: TopicChange, stamp_ms: int, region: Region) -> None:
        """A topic of the same name had been deleted before; a deletion says which seqs there were."""
        self._skip_seqs(change.cancel_below_seq, stamp_ms, region)
        named = self._indexes.topics.named(change.topic["name"])
        if named is not None and named.id != change.topic["id"]:
            self._delete(named, stamp_ms, region)

    def fitted(self, change: TopicChange) -> TopicChange:
        """The change with as many queues as are known already: they are never taken away."""
        known = self._indexes.topics.by_id(change.topic["id"])
        if known is None or change.is_deleted or change.topic["queue_count"] >= known.queue_count:
            return change
        topic = {**change.topic, "queue_count": known.queue_count, "origins": list(known.origins)}
        return replace(change, topic=topic)

    def _meet_topics(self, demands: Demands, stamp_ms: int, region: Region) -> None:
        for topic_id, queue_count in demands.queue_counts.items():
            known = self._indexes.topics.by_id(topic_id)
            if known is not None and known.queue_count >= queue_count:
                continue
            topic = self._hints.topic(topic_id) or known or _made_up(topic_id, queue_count)
            named = self._indexes.topics.named(topic.name)
            if named is not None and named.id != topic_id:
                if named.id < topic_id:
                    self._delete(named, stamp_ms, region)
                else:
                    topic = replace(topic, name=_made_up(topic_id, 1).name)
            self._put(replace(topic, queue_count=max(topic.queue_count, queue_count)), stamp_ms, region)

    def _put(self, topic: Topic, stamp_ms: int, region: Region) -> None:
        with self._store.write() as tx:
            tx.change_topic(topic, stamp_ms)
        region.topics.append(topic.name)

    def _delete(self, topic: Topic, stamp_ms: int, region: Region) -> None:
        end_seq = self._indexes.ledger.next_seq
        with self._store.write() as tx:
            tx.change_topic(topic, stamp_ms, is_deleted=True, cancel_below_seq=end_seq)
        region.topics.append(topic.name)

    # -- numbers ----------------------------------------------------------------------------------

    def _skip_seqs(self, next_seq: int, stamp_ms: int, region: Region) -> None:
        first = self._indexes.ledger.next_seq
        if next_seq > first:
            region.lost_seqs.append((first, next_seq))
        while first < next_seq:
            end = min(next_seq, first + _ROWS_MAX)
            self._write(Gap(first, end, []), stamp_ms)
            first = end

    def _skip_offsets(self, ends: dict[PartitionKey, int], stamp_ms: int, region: Region) -> None:
        rows, left = list[tuple[int, int, int, int]](), _ROWS_MAX
        for (topic_id, queue_id), end in sorted(ends.items()):
            first = self._indexes.topics.next_offset(topic_id, queue_id)
            if end > first:
                region.lost_offsets.append((topic_id, queue_id, first, end))
            while first < end:
                stop = min(end, first + left)
                rows.append((topic_id, queue_id, first, stop))
                left -= stop - first
                first = stop
                if not left:
                    self._write_rows(rows, stamp_ms)
                    rows, left = [], _ROWS_MAX
        self._write_rows(rows, stamp_ms)

    def _write_rows(self, rows: list[tuple[int, int, int, int]], stamp_ms: int) -> None:
        if rows:
            next_seq = self._indexes.ledger.next_seq
            self._write(Gap(next_seq, next_seq, rows), stamp_ms)

    def _write(self, gap: Gap, stamp_ms: int) -> None:
        with self._store.write() as tx:
            tx.copy(Kind.GAP, gap.parts(), stamp_ms, GAP_FORMAT)


def _made_up(topic_id: int, queue_count: int) -> Topic:
    """A topic of which nothing is known but its number."""
    return Topic(topic_id, f"salvaged-topic-{topic_id}", TopicType.MIXED, queue_count)
