"""How many messages fall due in each minute, for each topic. Forecast and dashboard read these.

Owns the counts of *pending* messages by (topic id, minute). Kept by the log writer while frames are applied;
saved with the index checkpoint. Reading one topic's horizon touches only its own counts; how many of a topic
are pending is kept beside them, because it is asked every second.

Which minutes have a count is kept by blocks of minutes as well, so that the few that are past are found
without looking at the many to come. Counts by tick (`TickCounts`) are kept only while a limit asks for them,
and not saved: a broker that wants them counts what is pending when the store opens.

Invariants: no count is negative or zero; the sum over all is the number of pending messages, and the sum over
a topic's minutes is what is kept for the topic; a block counts the minutes in it that have a count.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from tidemill.core.limits import MINUTE_MS
from tidemill.log.arrays import I64, U32

_MINUTE_BITS = 32
_BLOCK_BITS = 8  # minutes of a block: a little over four hours
# Up to so many are counted quicker by Python than with arrays.
_FEW = 128
# Turning a list into rows holds the interpreter: not for longer than a service may be late.
_ENCODED_AT_ONCE = 2_000


class DueCounts:
    """Pending messages by topic and minute."""

    def __init__(self) -> None:
        self._by_topic: dict[int, dict[int, int]] = {}
        self._pending: dict[int, int] = {}
        self._blocks: dict[int, dict[int, int]] = {}  # by topic and block: how many minutes have a count
        self.ticks: TickCounts | None = None  # the same by tick, once asked for

    def add(self, topic_ids: U32, deliver_at_ms: I64, sign: int) -> None:
        """Count messages in (`sign` 1) or out (-1)."""
        if not len(topic_ids):
            return
        if self.ticks is not None:
            self.ticks.add(topic_ids, deliver_at_ms, sign)
        if len(topic_ids) == 1:
            self._change(int(topic_ids[0]), int(deliver_at_ms[0]) // MINUTE_MS, sign)
            return
        if len(topic_ids) <= _FEW:
            self._add_few(topic_ids.tolist(), deliver_at_ms.tolist(), sign)
            return
        # A minute fits in 31 bits until the year 6053, so topic and minute share one sortable number.
        packed = topic_ids.astype(np.int64) << _MINUTE_BITS | deliver_at_ms // MINUTE_MS
        values, counts = _counted(packed)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._change(value >> _MINUTE_BITS, value & (1 << _MINUTE_BITS) - 1, sign * count)

    def _add_few(self, topic_ids: list[int], deliver_at_ms: list[int], sign: int) -> None:
        topic_id, first_ms, count = topic_ids[0], deliver_at_ms[0], len(topic_ids)
        if topic_ids.count(topic_id) == count and deliver_at_ms.count(first_ms) == count:
            self._change(topic_id, first_ms // MINUTE_MS, sign * count)
            return
        changes: dict[tuple[int, int], int] = {}
        for topic_id, due_ms in zip(topic_ids, deliver_at_ms, strict=True):
            place = topic_id, due_ms // MINUTE_MS
            changes[place] = changes.get(place, 0) + sign
        for (topic_id, minute), difference in changes.items():
            self._change(topic_id, minute, difference)

    def _change(self, topic_id: int, minute: int, difference: int) -> None:
        minutes = self._by_topic.setdefault(topic_id, {})
        left = minutes.get(minute, 0) + difference
        assert left >= 0, (topic_id, minute, left)
        if left:
            minutes[minute] = left
            if left == difference:
                self._note_minute(topic_id, minute, 1)
        else:
            del minutes[minute]
            self._note_minute(topic_id, minute, -1)
        self._pending[topic_id] = self._pending.get(topic_id, 0) + difference

    def _note_minute(self, topic_id: int, minute: int, sign: int) -> None:
        """A minute has a count now (`sign` 1), or has none any more (-1)."""
        blocks = self._blocks.setdefault(topic_id, {})
        left = blocks.get(minute >> _BLOCK_BITS, 0) + sign
        if left:
            blocks[minute >> _BLOCK_BITS] = left
        else:
            del blocks[minute >> _BLOCK_BITS]

    def pending(self, topic_id: int) -> int:
        return self._pending.get(topic_id, 0)

    def snapshot(self, topic_id: int | None) -> dict[int, dict[int, int]]:
        """Count by minute for one topic or for each, as of now; take it under the writer lock, it is quick.

        What is computed from it then blocks no other thread, however many minutes there are.
        """
        topic_ids = list(self._by_topic) if topic_id is None else [topic_id]
        return {one: self._by_topic.get(one, {}).copy() for one in topic_ids}

    def minutes(self, topic_id: int | None, first_minute: int, end_minute: int) -> dict[int, int]:
        """Count by minute in `[first_minute, end_minute)`, of one topic or of all."""
        found: dict[int, int] = {}
        topics = self._by_topic.values() if topic_id is None else [self._by_topic.get(topic_id, {})]
        for minutes in topics:
            if len(minutes) > end_minute - first_minute:
                wanted = [m for m in range(first_minute, end_minute) if m in minutes]
            else:
                wanted = [m for m in minutes if first_minute <= m < end_minute]
            for minute in wanted:
                found[minute] = found.get(minute, 0) + minutes[minute]
        return dict(sorted(found.items()))

    def before(self, end_minute: int) -> dict[int, dict[int, int]]:
        """By topic, the counts of all minutes below `end_minute`; topics without any are left out.

        Takes no lock: it looks at copies, and a count that changes meanwhile shows its old or its new value.
        """
        found: dict[int, dict[int, int]] = {}
        for topic_id, blocks in list(self._blocks.items()):
            minutes = self._by_topic[topic_id]
            for block in list(blocks):
                first = block << _BLOCK_BITS
                for minute in range(first, min(end_minute, first + (1 << _BLOCK_BITS))):
                    if count := minutes.get(minute, 0):
                        found.setdefault(topic_id, {})[minute] = count
        return found

    def first(self, from_minute: int) -> int | None:
        """The first minute at or after `from_minute` that has a count, of any topic."""
        found: list[int] = []
        for topic_id, blocks in list(self._blocks.items()):
            minutes = self._by_topic[topic_id]
            for block in sorted(block for block in list(blocks) if block >= from_minute >> _BLOCK_BITS):
                first = max(from_minute, block << _BLOCK_BITS)
                ahead = (m for m in range(first, block + 1 << _BLOCK_BITS) if m in minutes)
                if (minute := next(ahead, None)) is not None:
                    found.append(minute)
                    break
        return min(found, default=None)

    def encode(self) -> bytes:
        return encode_counts(self.snapshot(None))

    @classmethod
    def decode(cls, data: bytes) -> DueCounts:
        counts = cls()
        for topic_id, minute, count in np.frombuffer(data, "<i8").reshape(-1, 3).tolist():
            counts._change(topic_id, minute, count)
        return counts


def encode_counts(snapshot: dict[int, dict[int, int]]) -> bytes:
    """The counts of a snapshot, as a checkpoint keeps them."""
    rows = np.empty((sum(map(len, snapshot.values())), 3), "<i8")
    done = 0
    for topic_id, minutes in snapshot.items():
        left = iter(minutes.items())
        while part := list(islice(left, _ENCODED_AT_ONCE)):
            rows[done : done + len(part), 0] = topic_id
            rows[done : done + len(part), 1:] = part
            done += len(part)
    return rows.tobytes()


def minute_columns(snapshot: dict[int, int]) -> tuple[I64, I64]:
    """Minutes in order, and how many fall due in each."""
    minutes = np.fromiter(snapshot.keys(), np.int64, len(snapshot))
    counts = np.fromiter(snapshot.values(), np.int64, len(snapshot))
    order = np.argsort(minutes)
    return minutes[order], counts[order]


def _counted(packed: I64) -> tuple[I64, I64]:
    """Distinct values and how often each occurs; by counting where they lie close together."""
    low, high = int(packed.min()), int(packed.max())
    if low == high:
        return np.array([low]), np.array([len(packed)])
    if high - low < 4 * len(packed) + 1024:
        counts = np.bincount(packed - low)
        present = np.flatnonzero(counts)
        return present + low, counts[present]
    values, sorted_counts = np.unique(packed, return_counts=True)
    return values, sorted_counts


_TICK_BITS = 40  # ticks of 100 ms until the year 5454


class TickCounts:
    """Pending messages by topic and tick. Changed and read under the log writer's lock."""

    def __init__(self, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self._counts: dict[int, int] = {}

    def add(self, topic_ids: U32, deliver_at_ms: I64, sign: int) -> None:
        """Count messages in (`sign` 1) or out (-1)."""
        keys, counts = np.unique(self.keys(topic_ids, deliver_at_ms), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            left = self._counts.get(key, 0) + sign * count
            if left:
                self._counts[key] = left
            else:
                self._counts.pop(key, None)

    def count(self, topic_id: int, deliver_at_ms: int) -> int:
        """How many of a topic are due in the tick of a time."""
        return self._counts.get(topic_id << _TICK_BITS | deliver_at_ms // self.tick_ms, 0)

    def count_of(self, key: int) -> int:
        """The same by the key of a topic and a tick."""
        return self._counts.get(key, 0)

    def keys(self, topic_ids: I64 | U32, deliver_at_ms: I64) -> I64:
        """The keys of topics and ticks."""
        keys: I64 = topic_ids.astype(np.int64) << _TICK_BITS | deliver_at_ms // self.tick_ms
        return keys
