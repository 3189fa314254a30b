"""What a salvage could not copy, and what it may have got wrong: the report, in values that become JSON.

Owns the words for what is missing. Times are Unix ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemill.store.salvage.lost_entries import LostMessages
from tidemill.store.salvage.region import Region


@dataclass(frozen=True, slots=True)
class LostRows:
    """Offsets of a queue whose messages, or the records of their release, are lost."""

    topic: str
    queue: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LostCounts:
    """What of one topic is not in the copy: messages sent, releases and cancels."""

    topic: str
    sent: int
    released: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class RegionReport:
    """One damaged part of the commit log. `is_exact`: the counts are known, else they are at least that."""

    ranges: Sequence[Mapping[str, Any]]  # file, start, end, is_missing
    bytes: int
    time_from_ms: int | None
    time_to_ms: int | None
    is_exact: bool
    seqs: Sequence[tuple[int, int]]
    seq_count: int
    queues: Sequence[LostRows]
    queue_row_count: int
    counts: Sequence[LostCounts]
    moved: int | None
    topics: Sequence[str]  # made, changed or deleted by lost frames
    known_messages: Sequence[Mapping[str, Any]]  # by topic, from the old index: count, due times


@dataclass(frozen=True, slots=True)
class OpenTransactionDoubt:
    """A transaction that is open in the copy and may have ended."""

    topic: str
    id: str


@dataclass(frozen=True, slots=True)
class LostGroup:
    """Where a consumer group goes on in a queue, and how many deliveries it has not settled."""

    group: str
    topic: str
    queue: int
    next_offset: int
    unsettled: int


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """A salvage. The listed messages are in a file of their own."""

    source: str
    directory: str
    broker: str
    has_new_broker_id: bool  # the identity could not be read: handles from before are unknown
    log_frames: int
    log_bytes: int
    pending: int
    sent: int
    released: int
    cancelled: int
    regions: Sequence[RegionReport]
    opening_frames: Sequence[Mapping[str, Any]]  # damaged, and nothing lost with them
    expired_releases: int
    unreadable_bytes: int
    possibly_released: int
    possibly_cancelled: int
    possibly_moved: int
    possibly_ended: Sequence[OpenTransactionDoubt]
    consumer_damages: Sequence[Mapping[str, Any]]
    consumer_checkpoint_lost: bool
    unknown_groups: Sequence[int]
    groups: Sequence[LostGroup] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True when nothing is missing."""
        return not (
            self.regions
            or self.consumer_damages
            or self.consumer_checkpoint_lost
            or self.unknown_groups
            or self.has_new_broker_id
        )


def region_report(region: Region, topics: Mapping[int, str], known: Sequence[LostMessages]) -> RegionReport:
    """What is known of one region."""

    def name(topic_id: int) -> str:
        return topics.get(topic_id, f"topic {topic_id}")

    counts = region.lost_totals or {}
    return RegionReport(
        ranges=[asdict(damage) for damage in region.damages],
        bytes=sum(damage.byte_count for damage in region.damages),
        time_from_ms=region.before_ms,
        time_to_ms=region.after_ms,
        is_exact=region.lost_totals is not None,
        seqs=region.lost_seqs,
        seq_count=region.lost_seq_count,
        queues=[LostRows(name(t), q, first, end) for t, q, first, end in region.lost_offsets],
        queue_row_count=region.lost_row_count,
        counts=[LostCounts(name(topic_id), *lost) for topic_id, lost in sorted(counts.items())],
        moved=region.lost_moves,
        topics=sorted(set(region.topics)),
        known_messages=[
            {
                "topic": name(lost.topic_id),
                "count": lost.count,
                "due_from_ms": lost.due_from_ms,
                "due_to_ms": lost.due_to_ms,
            }
            for lost in known
        ],
    )
