"""What is known of a damaged part of a log: where it is, and which numbers its frames had given away.

A region begins with the first damaged range and is *bounded* by the next place where the whole state is
known: a base frame, or the index checkpoint. What is counted between is exact then. Where a log ends before,
only what later frames name is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.store.salvage.source import Damage
from tidemill.store.totals import Totals

PartitionKey = tuple[int, int]  # topic id, queue id
_SENT, _RELEASED, _CANCELLED = range(3)


@dataclass(slots=True)
class Region:
    """One damaged part of the commit log and what it took with it."""

    damages: list[Damage]
    before_ms: int | None  # stamp of the last frame before it
    below_seq: int  # seqs below were made before its last damaged range
    copied_to: int  # log offset in the copy where it begins
    after_ms: int | None = None  # stamp of the first frame behind it
    lost_seqs: list[tuple[int, int]] = field(default_factory=list)
    lost_offsets: list[tuple[int, int, int, int]] = field(default_factory=list)  # topic, queue, first, end
    confirmed: set[PartitionKey] = field(default_factory=set)  # queues a later frame went on with
    is_bounded: bool = False
    lost_totals: dict[int, tuple[int, int, int]] | None = None  # by topic: sent, released, cancelled
    lost_moves: int | None = None
    topics: list[str] = field(default_factory=list)  # made, changed or deleted by frames that are lost

    def grow(self, damage: Damage, below_seq: int) -> None:
        """Another damaged range before the state was known again."""
        self.damages.append(damage)
        self.after_ms = None
        self.below_seq = below_seq
        self.confirmed.clear()

    def count(self, present: Totals, wanted: Mapping[str, Any]) -> None:
        """Note what totals say that frames which can be read do not."""
        true = Totals.from_dict(wanted)
        self.lost_moves = max(0, true.moved - present.moved)
        self.lost_totals = {}
        for topic_id in true.by_topic:
            pairs = zip(true.of_topic(topic_id), present.of_topic(topic_id), strict=True)
            lost = tuple(max(0, one - other) for one, other in pairs)
            if any(lost):
                self.lost_totals[topic_id] = (lost[_SENT], lost[_RELEASED], lost[_CANCELLED])

    @property
    def has_set_back_clock(self) -> bool:
        """Whether the clock showed less behind it than before: what was due in it is not known then."""
        return None not in (self.before_ms, self.after_ms) and (self.after_ms or 0) < (self.before_ms or 0)

    @property
    def lost_seq_count(self) -> int:
        return sum(end - first for first, end in self.lost_seqs)

    @property
    def lost_row_count(self) -> int:
        return sum(end - first for _, _, first, end in self.lost_offsets)

    def may_hold_releases(self, topic_id: int) -> bool:
        """Whether a release of this topic may be lost."""
        return self.lost_totals is None or self.lost_totals.get(topic_id, (0, 0, 0))[_RELEASED] > 0

    def may_hold_cancels(self, topic_id: int) -> bool:
        """Whether a cancel of this topic may be lost."""
        return self.lost_totals is None or self.lost_totals.get(topic_id, (0, 0, 0))[_CANCELLED] > 0

    @property
    def may_hold_moves(self) -> bool:
        """Whether a reschedule or a retention move may be lost."""
        return self.lost_moves is None or self.lost_moves > 0
