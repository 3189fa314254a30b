"""Topics: names, ids, types, queues, and how far each queue is filled.

Owns the table of topics and, for every queue, the offset its next message will get. Derived from the commit
log (topic changes, base frames, and every frame that puts messages into queues).

Invariants: a topic id is never used again, also not after a delete; offsets of a queue only grow.
`partitions` number all queues of all topics densely, so that a whole batch gets its offsets at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tidemill.core.model import TopicType
from tidemill.log.arrays import I64


@dataclass(frozen=True, slots=True)
class Topic:
    """What is known of a topic. `release_rate_max` is messages a second, 0 for no limit."""

    id: int
    name: str
    type: TopicType
    queue_count: int
    is_paused: bool = False
    release_rate_max: int = 0
    # Of a retry topic: queue i holds what came from the topic with the i-th id.
    origins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # What a topic frame says must read back: a wrong type is a bug, reported before it is written.
        wanted = (int, str, TopicType, int, bool, int)
        given = (self.id, self.name, self.type, self.queue_count, self.is_paused, self.release_rate_max)
        assert tuple(map(type, given)) == wanted, given

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "origins": list(self.origins)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Topic:
        origins = tuple(fields.get("origins", ()))
        return cls(**{**fields, "type": TopicType(fields["type"]), "origins": origins})


class TopicTable:
    """Topics by name and id, and the next offset of every partition."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._first_partition: dict[int, int] = {}
        self._partition_of_topic: I64 = np.zeros(64, np.int64)
        self._next_offsets: I64 = np.zeros(64, np.int64)
        self._partition_count = 0
        self.next_topic_id = 1

    def put(self, topic: Topic) -> None:
        """Add a topic or change what is known of it. Queues may be added, never taken away."""
        known = self._by_id.get(topic.id)
        if known is None or known.queue_count != topic.queue_count:
            self._give_partitions(topic, known)
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self.next_topic_id = max(self.next_topic_id, topic.id + 1)

    def remove(self, topic_id: int) -> None:
        topic = self._by_id.pop(topic_id, None)
        if topic is not None:
            del self._by_name[topic.name]

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: int) -> Topic | None:
        return self._by_id.get(topic_id)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    # -- partitions ------------------------------------------------------------------------------------

    def partitions(self, topic_ids: Any, queue_ids: Any) -> I64:
        """The partition of each (topic, queue)."""
        partitions: I64 = self._partition_of_topic[topic_ids] + queue_ids
        return partitions

    def set_offsets(self, topic_id: int, next_offsets: Sequence[int]) -> None:
        first = self._first_partition[topic_id]
        self._next_offsets[first : first + len(next_offsets)] = next_offsets

    def next_offset(self, topic_id: int, queue_id: int) -> int:
        return int(self._next_offsets[self._first_partition[topic_id] + queue_id])

    def plan_offsets(self, partitions: I64) -> I64:
        """Offsets that messages of these partitions would get, in their order. Nothing moves yet."""
        if len(partitions) <= 1:
            return self._next_offsets[partitions]
        narrow = partitions.astype(np.uint16) if self._partition_count <= 1 << 16 else partitions
        order = np.argsort(narrow, kind="stable")
        sorted_partitions = partitions[order]
        counts = np.bincount(partitions)
        firsts = np.cumsum(counts) - counts
        offsets = np.empty(len(partitions), np.int64)
        offsets[order] = (
            np.arange(len(partitions)) - firsts[sorted_partitions] + self._next_offsets[sorted_partitions]
        )
        return offsets

    def take_offsets(self, partitions: I64, end_offsets: I64) -> None:
        """Queues are filled up to `end_offsets` now."""
        np.maximum.at(self._next_offsets, partitions, end_offsets)

    def offsets_of(self, topic: Topic) -> list[int]:
        first = self._first_partition[topic.id]
        return [int(offset) for offset in self._next_offsets[first : first + topic.queue_count]]

    def _give_partitions(self, topic: Topic, known: Topic | None) -> None:
        first = self._partition_count
        self._partition_count += topic.queue_count
        self._next_offsets = _grown(self._next_offsets, self._partition_count)
        if known is not None:
            assert topic.queue_count > known.queue_count
            old_first = self._first_partition[topic.id]
            old = self._next_offsets[old_first : old_first + known.queue_count].copy()
            self._next_offsets[first : first + known.queue_count] = old
        self._partition_of_topic = _grown(self._partition_of_topic, topic.id + 1)
        self._partition_of_topic[topic.id] = first
        self._first_partition[topic.id] = first


def _grown(array: I64, size: int) -> I64:
    if size <= len(array):
        return array
    grown = np.zeros(max(size, 2 * len(array)), np.int64)
    grown[: len(array)] = array
    return grown
