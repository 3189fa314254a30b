"""Messages that are pending in the copy and may not have been: their release, cancel or move may be lost.

Owns the pass over what is pending once the copy is done. It looks at entries in arrays and reads only the
messages that are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidemill.log.arrays import I64, Flags, Rows
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore
from tidemill.store.salvage.region import Region

_SCAN_ROWS = 1 << 18
_QUEUE_BITS = 16
# How many messages are listed whose cancel or move may be lost; all of them are counted.
LISTED_MAX = 100_000
_ANY_TIME_MS = 1 << 62

RELEASED, CANCELLED, MOVED = "released", "cancelled", "moved"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A pending message, and what may have become of it before."""

    seq: int
    id: str
    topic: str
    keys: tuple[str, ...]
    deliver_at_ms: int
    may_be: tuple[str, ...]


class Doubts:
    """The messages in doubt. Iterate once; the counts are right then."""

    def __init__(self, store: MessageStore, regions: list[Region], now_ms: int) -> None:
        self._store = store
        self._regions = regions
        self._now_ms = now_ms
        self.counts: Counter[str] = Counter()  # by what may have become of them

    def __iter__(self) -> Iterator[Doubt]:
        ledger = self._store.ledger
        first = ledger.head_seq
        end = min(ledger.next_seq, max((region.below_seq for region in self._regions), default=0))
        listed = 0
        while first < end:
            stop = min(end, first + _SCAN_ROWS)
            is_pending = ledger.range_states(first, stop) == State.PENDING
            rows = self._store.entries.read(first, stop, is_pending)
            seqs = np.arange(first, stop)[is_pending]
            rows = rows[is_pending]
            masks = {kind: np.zeros(len(seqs), np.bool_) for kind in (RELEASED, CANCELLED, MOVED)}
            for region in self._regions:
                self._mark(masks, region, seqs, rows)
            for kind, mask in masks.items():
                self.counts[kind] += int(mask.sum())
            for index in np.flatnonzero(masks[RELEASED] | masks[CANCELLED] | masks[MOVED]).tolist():
                may_be = tuple(kind for kind, mask in masks.items() if mask[index])
                if RELEASED not in may_be and listed >= LISTED_MAX:
                    continue
                listed += 1
                yield self._doubt(int(seqs[index]), int(rows["place"][index]), may_be)
            first = stop

    def _mark(self, masks: dict[str, Flags], region: Region, seqs: I64, rows: Rows) -> None:
        is_older = seqs < region.below_seq
        topic_ids = np.unique(rows["topic_id"]).tolist()
        due_until_ms = self._due_until_ms(region)
        partitions = rows["topic_id"].astype(np.int64) << _QUEUE_BITS | rows["queue_id"]
        masks[RELEASED] |= (
            is_older
            & (rows["deliver_at_ms"] <= due_until_ms)
            & _of(rows, [t for t in topic_ids if region.may_hold_releases(t)])
            & self._is_open_partition(region, partitions)
        )
        masks[CANCELLED] |= is_older & _of(rows, [t for t in topic_ids if region.may_hold_cancels(t)])
        if region.may_hold_moves:
            masks[MOVED] |= is_older

    def _due_until_ms(self, region: Region) -> int:
        """A release in the region was of messages due by then."""
        if region.after_ms is None:
            return max(self._now_ms, region.before_ms or 0)
        if region.has_set_back_clock:
            return _ANY_TIME_MS
        return max(region.after_ms, region.before_ms or 0)

    @staticmethod
    def _is_open_partition(region: Region, partitions: I64) -> Flags:
        """Which rows are of queues that something may have been put into by a lost frame."""
        lost = np.array([t << _QUEUE_BITS | q for t, q, _, _ in region.lost_offsets], np.int64)
        is_open: Flags = np.isin(partitions, lost)
        if not region.is_bounded:
            certain = np.array([t << _QUEUE_BITS | q for t, q in region.confirmed], np.int64)
            is_open |= ~np.isin(partitions, certain)
        return is_open

    def _doubt(self, seq: int, place: int, may_be: tuple[str, ...]) -> Doubt:
        message = self._store.message(place)
        topic = self._store.topics.by_id(message.topic_id)
        name = topic.name if topic is not None else f"topic {message.topic_id}"
        return Doubt(seq, message.id, name, message.keys, message.deliver_at_ms, may_be)


def _of(rows: Rows, topic_ids: list[int]) -> Flags:
    mask: Flags = np.isin(rows["topic_id"], np.array(topic_ids, np.uint32))
    return mask
