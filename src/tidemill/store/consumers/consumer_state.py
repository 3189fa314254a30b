"""How far each consumer group has got in each queue, and what it has taken but not settled.

Owns, for every (group, topic, queue): the offset of the next message never handed out, and for each message
handed out and not settled its attempt and the time it becomes visible again. A message below the cursor
that is not in that table is settled. This is truth, not derived: it has a log and a checkpoint of its own
(`consumer_log.py` writes them).

Invariants:
- an ack token settles only the attempt it was given for, and none after a reset;
- changes are applied in the order they are logged, by the same function that replays them;
- `first_unsettled` of a queue never passes an unsettled message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tidemill.log.arrays import Rows

CHANGE = np.dtype(
    [
        ("act", "u1"),
        ("is_untried", "u1"),  # of a change: not tried, so this delivery is no attempt
        ("queue_id", "<u2"),
        ("group_id", "<u4"),
        ("topic_id", "<u4"),
        ("attempt", "<u4"),
        ("offset", "<i8"),
        ("visible_at_ms", "<i8"),
    ]
)
assert CHANGE.itemsize == 32

ACT_TAKE = 1  # handed out: attempt, visible again at
ACT_SETTLE = 2  # acknowledged, replaced by a message sent back, or not wanted by the group's filter
ACT_CHANGE = 3  # visible again at another time
ACT_CURSOR = 4  # the cursor moves to `offset`; what was taken before is forgotten
ACT_SKIP = 5  # expired before it was handed out: the cursor steps over everything below `offset`
ACT_NAMES = {
    ACT_TAKE: "take",
    ACT_SETTLE: "settle",
    ACT_CHANGE: "change",
    ACT_CURSOR: "cursor",
    ACT_SKIP: "skip",
}

GroupQueue = tuple[int, int, int]  # group id, topic id, queue id


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group's settings."""

    id: int
    name: str
    attempts_max: int = 16
    is_fifo: bool = False
    backoff: str = ""  # pauses between attempts, as `10s 1m 5m`; empty: the levels from the third on
    starts_first: bool = True  # a group that is new to a topic begins at its oldest message, else at its end


@dataclass(slots=True)
class Progress:
    """One group's way through one queue."""

    next_offset: int
    resets: int = 0  # how often the group was sent elsewhere in this queue; older ack tokens settle nothing
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset -> attempt, visible-at ms
    _due: list[tuple[int, int]] = field(default_factory=list)  # heap of (visible-at, offset), also stale ones
    # Of what was given back untried: how many of its deliveries that were, and the last of them.
    untried: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def first_unsettled(self) -> int:
        """Everything below is settled."""
        return min(self.taken, default=self.next_offset)

    def put(self, offset: int, attempt: int, visible_at_ms: int) -> None:
        self.taken[offset] = (attempt, visible_at_ms)
        heapq.heappush(self._due, (visible_at_ms, offset))

    def attempts(self, offset: int) -> int:
        """Attempts at a leased message: its deliveries but for those untried."""
        return self.taken[offset][0] - self.untried.get(offset, (0, 0))[0]

    def note_untried(self, offset: int, delivery: int) -> None:
        """A delivery was given back untried; said again, it is still the same one."""
        count, last = self.untried.get(offset, (0, 0))
        if last != delivery:
            self.untried[offset] = (count + 1, delivery)

    def forget(self, offset: int) -> None:
        self.taken.pop(offset, None)
        self.untried.pop(offset, None)

    def visible_again(self, now_ms: int, limit: int) -> list[int]:
        """Offsets whose lease has ended, in order of their end."""
        found: list[int] = []
        kept: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < limit:
            visible_at_ms, offset = heapq.heappop(self._due)
            held = self.taken.get(offset)
            if held is not None and held[1] == visible_at_ms and offset not in found:
                found.append(offset)
                kept.append((visible_at_ms, offset))
        for entry in kept:  # they leave the heap only when they are taken or settled
            heapq.heappush(self._due, entry)
        return found

    def next_visible_ms(self, now_ms: int | None = None) -> int | None:
        """When the next lease ends; with `now_ms` the next after that, if there is one."""
        if now_ms is not None:
            ends_ms = [visible_at_ms for _, visible_at_ms in self.taken.values()]
            return min((end_ms for end_ms in ends_ms if end_ms > now_ms), default=min(ends_ms, default=None))
        while self._due:
            visible_at_ms, offset = self._due[0]
            held = self.taken.get(offset)
            if held is not None and held[1] == visible_at_ms:
                return visible_at_ms
            heapq.heappop(self._due)
        return None


class ConsumerState:
    """Groups and their progress. Changes only through `apply`, under the consumer log's lock."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._names: dict[int, str] = {}
        self._group_queues: dict[GroupQueue, Progress] = {}

    # -- groups -----------------------------------------------------------------------------------

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def group_name(self, group_id: int) -> str:
        return self._names[group_id]

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def new_group(self, name: str) -> Group:
        return Group(id=max(self._names, default=0) + 1, name=name)

    def put_group(self, group: Group) -> None:
        self._groups[group.name] = group
        self._names[group.id] = group.name

    # -- progress ---------------------------------------------------------------------------------

    def progress(self, group_queue: GroupQueue) -> Progress | None:
        return self._group_queues.get(group_queue)

    def group_queues(self) -> Iterator[tuple[GroupQueue, Progress]]:
        return iter(list(self._group_queues.items()))

    def apply(self, changes: Rows) -> None:
        """Carry out logged changes, in order."""
        for change in changes.tolist():
            act, is_untried, queue_id, group_id, topic_id, attempt, offset, visible_at_ms = change
            group_queue = (group_id, topic_id, queue_id)
            progress = self._group_queues.get(group_queue)
            if act == ACT_CURSOR:
                self._group_queues[group_queue] = Progress(
                    offset, progress.resets + 1 if progress is not None else 0
                )
                continue
            if progress is None:
                progress = self._group_queues[group_queue] = Progress(0)
            if act == ACT_TAKE:
                if attempt <= progress.untried.get(offset, (0, 0))[1]:  # counted anew: a letter is resent
                    progress.untried.pop(offset, None)
                progress.put(offset, attempt, visible_at_ms)
                progress.next_offset = max(progress.next_offset, offset + 1)
            elif act == ACT_SETTLE:
                progress.forget(offset)
                progress.next_offset = max(progress.next_offset, offset + 1)
            elif act == ACT_CHANGE:
                if offset in progress.taken:
                    progress.put(offset, attempt, visible_at_ms)
                    if is_untried:
                        progress.note_untried(offset, attempt)
            else:
                assert act == ACT_SKIP
                progress.next_offset = max(progress.next_offset, offset)
                for held in [o for o in progress.taken if o < offset]:
                    progress.forget(held)

    def clamp(self, group_queue: GroupQueue, end: int) -> None:
        """Forget progress beyond the end of the queue: those messages are not there (any more)."""
        progress = self._group_queues[group_queue]
        progress.next_offset = min(progress.next_offset, end)
        for offset in [o for o in progress.taken if o >= end]:
            progress.forget(offset)

    def forget_topic(self, topic_id: int) -> None:
        self._group_queues = {key: held for key, held in self._group_queues.items() if key[1] != topic_id}

    def forget_group(self, group_id: int) -> None:
        """Forget how far a group has got everywhere."""
        self._group_queues = {key: held for key, held in self._group_queues.items() if key[0] != group_id}

    def leased(self, now_ms: int) -> Iterator[tuple[GroupQueue, int]]:
        """Messages in a consumer's hands right now."""
        for group_queue, progress in self._group_queues.items():
            for offset, (_, visible_at_ms) in progress.taken.items():
                if visible_at_ms > now_ms:
                    yield group_queue, offset

    # -- saving -----------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        return {
            "groups": [asdict(group) for group in self._groups.values()],
            "lanes": [
                [
                    *group_queue,
                    progress.next_offset,
                    [[o, a, v] for o, (a, v) in progress.taken.items()],
                    progress.resets,
                ]
                for group_queue, progress in self._group_queues.items()
            ],
            "untried": [
                [*group_queue, offset, *noted]
                for group_queue, progress in self._group_queues.items()
                for offset, noted in progress.untried.items()
            ],
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> ConsumerState:
        state = cls()
        for fields in content["groups"]:
            state.put_group(Group(**fields))
        for group_id, topic_id, queue_id, next_offset, taken, *resets in content["lanes"]:
            # Checkpoints of earlier versions counted no resets.
            progress = state._group_queues[group_id, topic_id, queue_id] = Progress(next_offset, *resets)
            for offset, attempt, visible_at_ms in taken:
                progress.put(offset, attempt, visible_at_ms)
        for group_id, topic_id, queue_id, offset, count, last in content.get("untried", ()):
            state._group_queues[group_id, topic_id, queue_id].untried[offset] = (count, last)
        return state
