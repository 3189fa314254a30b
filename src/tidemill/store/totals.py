"""Counts since the log began: sent, released, cancelled by topic, and moves. Derived; in base frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidemill.log.arrays import I64, U32

# Up to so many are counted quicker by Python than with arrays.
_FEW = 128


@dataclass(slots=True)
class Totals:
    """Running counts. `by_topic` maps a topic id to [sent, released, cancelled]."""

    by_topic: dict[int, list[int]] = field(default_factory=dict)
    moved: int = 0

    def count_sent(self, topic_ids: U32) -> None:
        self._count(topic_ids, None, 0)

    def count_released(self, topic_ids: U32, counts: I64) -> None:
        self._count(topic_ids, counts, 1)

    def count_cancelled(self, topic_ids: U32 | I64, counts: U32 | I64) -> None:
        self._count(topic_ids, counts, 2)

    def of_topic(self, topic_id: int) -> tuple[int, int, int]:
        sent, released, cancelled = self.by_topic.get(topic_id, (0, 0, 0))
        return sent, released, cancelled

    def overall(self) -> tuple[int, int, int]:
        sent, released, cancelled = (
            sum(column) for column in zip((0, 0, 0), *self.by_topic.values(), strict=True)
        )
        return sent, released, cancelled

    def _count(self, topic_ids: U32 | I64, counts: U32 | I64 | None, which: int) -> None:
        if not len(topic_ids):
            return
        if len(topic_ids) == 1:
            count = 1 if counts is None else int(counts[0])
            self.by_topic.setdefault(int(topic_ids[0]), [0, 0, 0])[which] += count
            return
        if counts is None and len(topic_ids) <= _FEW:
            each = topic_ids.tolist()
            for topic_id in set(each):
                self.by_topic.setdefault(topic_id, [0, 0, 0])[which] += each.count(topic_id)
            return
        summed = np.bincount(topic_ids, counts).astype(np.int64)
        for topic_id in np.flatnonzero(summed).tolist():
            self.by_topic.setdefault(topic_id, [0, 0, 0])[which] += int(summed[topic_id])

    def as_dict(self) -> dict[str, Any]:
        return {"by_topic": {str(k): list(v) for k, v in self.by_topic.items()}, "moved": self.moved}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Totals:
        by_topic = {int(k): list(v) for k, v in content.get("by_topic", {}).items()}
        return cls(by_topic, int(content.get("moved", 0)))
