"""Backlogs: due messages of topics that may not take them now, paused or over their release rate.

Owns, for each such topic, its waiting rows in order, so that it holds up no other topic, and how many the
rate lets through. Memory is bounded: beyond `rows_max` a topic's latest rows are dropped and it is marked
*spilled*; they are still pending in the ledger, and when the topic has space the releaser finds them again
by looking through the entries.

Owns also the names of what a due message can wait for (`WaitReason`), which are a contract (status, metrics).
Nothing is skipped for any of them: what waits goes as soon as its reason is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from tidemill.log.arrays import I64, Flags, Rows
from tidemill.release.due_rows import NO_ROWS, joined, without_repeats
from tidemill.store.topics import Topic, TopicTable

ROWS_MAX = 1 << 20


@dataclass(slots=True)
class _Backlog:
    rows: Rows = field(default_factory=lambda: NO_ROWS)
    is_spilled: bool = False


@dataclass(slots=True)
class _Allowance:
    """A token bucket that holds at most one second's worth."""

    tokens: float
    filled_at_ms: int

    def refill(self, rate: int, now_ms: int) -> int:
        self.tokens = min(float(rate), self.tokens + max(0, now_ms - self.filled_at_ms) * rate / 1000)
        self.filled_at_ms = now_ms
        return int(self.tokens)


class WaitReason(StrEnum):
    PAUSE = "pause"  # its topic is paused
    RATE = "rate"  # its topic may release only so many a second
    ORDER = "order"  # a FIFO message: the timer has not handed over all that may come before it
    COMMIT = "commit"  # as many release records as may be under way are, and none is safe yet
    DISK_SPACE = "disk"  # a release record finds no space on the disk; retried, ever more rarely
    SWEEP = "sweep"  # overdue, and neither the timer nor the releaser has it: a scan of the entries finds it
    HOLD = "hold"  # releases are held for the whole broker, until an operator resumes them
    ABSORB = "absorb"  # absorbing is held, and the timer had not taken it in; it goes after the resume
    CLOCK = "clock"  # the wall clock leapt forward: held for ten seconds, it may be wrong


@dataclass(frozen=True, slots=True)
class ReleaseWait:
    """Messages that wait for one reason; `topic_id` where it is one topic's own."""

    waits_for: WaitReason
    messages: int
    topic_id: int | None = None


class Backlogs:
    """Waiting rows by topic id. Not thread-safe: the releaser's lock protects it."""

    def __init__(self, topics: TopicTable, rows_max: int = ROWS_MAX) -> None:
        self._topics = topics
        self.rows_max = rows_max
        self._backlogs: dict[int, _Backlog] = {}
        self._allowances: dict[int, _Allowance] = {}

    @property
    def count(self) -> int:
        return sum(len(backlog.rows) for backlog in list(self._backlogs.values()))

    def waits(self) -> list[ReleaseWait]:
        """The topics that hold something back, and why; of a spilled one only what is in memory counts.

        May be called from any thread: it looks at copies.
        """
        found = []
        for topic_id, backlog in list(self._backlogs.items()):
            topic = self._topics.by_id(topic_id)
            if topic is not None and len(backlog.rows):
                reason = WaitReason.PAUSE if topic.is_paused else WaitReason.RATE
                found.append(ReleaseWait(reason, len(backlog.rows), topic_id))
        return found

    def earliest(self) -> dict[int, int]:
        """When the earliest row of each topic that waits here is due; a look, as above."""
        waiting = [(topic_id, backlog.rows) for topic_id, backlog in list(self._backlogs.items())]
        return {topic_id: int(rows["deliver_at_ms"][0]) for topic_id, rows in waiting if len(rows)}

    def admit(self, rows: Rows, topic_ids: I64, now_ms: int) -> Rows:
        """Of rows that are due, those that may go now, with what waited before them; the rest waits."""
        limited = {t.id for t in self._topics if t.is_paused or t.release_rate_max} | self._backlogs.keys()
        if not limited:
            return rows
        is_limited = np.isin(topic_ids, list(limited))
        free = [rows[~is_limited]]
        for topic_id in limited:
            topic = self._topics.by_id(topic_id)
            arrived = rows[topic_ids == topic_id]
            if topic is None:
                self._backlogs.pop(topic_id, None)  # deleted: everything it waited for was cancelled
            elif len(arrived) or topic_id in self._backlogs:
                free.append(self._admit_topic(topic, arrived, now_ms))
        return joined(free)

    def _admit_topic(self, topic: Topic, arrived: Rows, now_ms: int) -> Rows:
        backlog = self._backlogs.get(topic.id)
        if backlog is not None and backlog.is_spilled:
            # What was dropped comes before what arrives now: these are found again together.
            arrived = _before(arrived, backlog.rows[-1:])
        # A row may come again while it waits here: the pipeline hands over at least once.
        waiting = without_repeats(joined([backlog.rows, arrived])) if backlog else arrived
        # Once due is not due for ever: the clock may have been set back since.
        due_count = int(np.searchsorted(waiting["deliver_at_ms"], now_ms, "right"))
        count = min(due_count, self._allowed(topic, now_ms))
        if topic.release_rate_max and topic.id in self._allowances:
            self._allowances[topic.id].tokens -= count
        rest = waiting[count:]
        is_spilled = backlog.is_spilled if backlog else False
        if len(rest) > self.rows_max:
            rest, is_spilled = rest[: self.rows_max], True
        if len(rest) or is_spilled:
            self._backlogs[topic.id] = _Backlog(rest, is_spilled)
        else:
            self._backlogs.pop(topic.id, None)
        return waiting[:count]

    def _allowed(self, topic: Topic, now_ms: int) -> int:
        if topic.is_paused:
            return 0
        rate = topic.release_rate_max
        if not rate:
            return 1 << 62
        allowance = self._allowances.setdefault(topic.id, _Allowance(float(rate), now_ms))
        return allowance.refill(rate, now_ms)

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When a topic that waits for its rate may go on."""
        wakes = []
        for topic_id, backlog in self._backlogs.items():
            topic = self._topics.by_id(topic_id)
            if topic is None or topic.is_paused or not (len(backlog.rows) or backlog.is_spilled):
                continue
            tokens = self._allowances[topic_id].tokens if topic_id in self._allowances else 1.0
            rate = topic.release_rate_max
            wait_ms = 0 if not rate or tokens >= 1 else max(1, round((1 - tokens) * 1000 / rate))
            first_due_ms = int(backlog.rows["deliver_at_ms"][0]) if len(backlog.rows) else 0
            wakes.append(max(now_ms + wait_ms, first_due_ms))
        return min(wakes, default=None)

    def spilled(self) -> list[int]:
        """Topics that run, whose backlog in memory is used up, and that have more waiting in the entries."""
        found = []
        for topic_id, backlog in self._backlogs.items():
            topic = self._topics.by_id(topic_id)
            if backlog.is_spilled and not len(backlog.rows) and topic is not None and not topic.is_paused:
                found.append(topic_id)
        return found

    def refill(self, topic_id: int, rows: Rows, is_complete: bool) -> None:
        """Put back rows of a spilled topic, found again in the entries."""
        self._backlogs[topic_id] = _Backlog(rows, not is_complete)

    def rows(self) -> dict[int, Rows]:
        """What waits in memory, by topic."""
        return {topic_id: backlog.rows for topic_id, backlog in self._backlogs.items()}

    def spilled_ids(self) -> frozenset[int]:
        """Topics that have more waiting than is in memory."""
        return frozenset(topic_id for topic_id, backlog in list(self._backlogs.items()) if backlog.is_spilled)

    def holds(self, topic_ids: I64) -> Flags:
        """Which rows belong to a topic with a backlog."""
        return np.isin(topic_ids, list(self._backlogs))


def _before(rows: Rows, last: Rows) -> Rows:
    """The rows that come before `last` (one row, or none: then none does) in order."""
    if not len(last):
        return rows[:0]
    due, seq = int(last["deliver_at_ms"][0]), int(last["seq"][0])
    is_before = (rows["deliver_at_ms"] < due) | ((rows["deliver_at_ms"] == due) & (rows["seq"] < seq))
    before: Rows = rows[is_before]
    return before
