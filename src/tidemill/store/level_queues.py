"""The level queues: the seqs of waiting level messages, one queue for each delay, in order of due time.

Derived from the commit log: a frame that makes level messages adds them here, in log order, and opening
adds them again from the entries. All messages of a queue wait equally long, so due times only grow along
it: the messages due at any moment are a stretch at its front, found by one binary search, however many they
are. Where due times would decrease (the clock was set back, or two senders met at the lock), the rows
go to the first *run* that they fit behind, or begin a new one; nearly always there is one run. Along a run
neither seqs nor due times fall.

A queue belongs to a delay, not to the number of a level: after a change of the table what waits stays where
it is. `taken` is the cursor: rows before it are in the releaser's hands. They are kept until they are
settled, so that the lag of a level can be read.

A row takes eight bytes: seq and due time as differences from those of its run's first row.

Not thread-safe: the commit log's lock protects it; `next_due_ms` may be looked at without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tidemill.log.arrays import I64, U32, Flags, Rows
from tidemill.store.formats.entry_format import FLAG_LEVEL

_SPAN_MAX = (1 << 32) - 1
_CAPACITY_MIN = 64
_LOOK_ROWS = 1 << 14

PendingMask = Callable[[I64], Flags]


@dataclass(frozen=True, slots=True)
class DelayView:
    """What waits with one delay."""

    delay_ms: int
    waiting: int
    next_due_ms: int | None  # the earliest due time of what waits, which may be in the past


class _Run:
    """Rows of one delay whose due times do not fall."""

    def __init__(self, first_seq: int, first_due_ms: int) -> None:
        self._first_seq = first_seq
        self._first_due_ms = first_due_ms
        self.last_due_ms = first_due_ms
        self._seqs: U32 = np.empty(_CAPACITY_MIN, np.uint32)
        self._dues: U32 = np.empty(_CAPACITY_MIN, np.uint32)
        self._settled = 0  # rows before this one are known to be settled
        self.taken = 0
        self.end = 0

    def takes(self, seqs: I64, dues_ms: I64) -> bool:
        """True if these rows may follow."""
        return (
            self.last_due_ms <= int(dues_ms[0])
            and int(dues_ms[-1]) - self._first_due_ms <= _SPAN_MAX
            and int(seqs[-1]) - self._first_seq <= _SPAN_MAX
        )

    def add(self, seqs: I64, dues_ms: I64, is_pending: PendingMask) -> None:
        if self.end + len(seqs) > len(self._seqs):
            self._make_room(len(seqs), is_pending)
        stop = self.end + len(seqs)
        self._seqs[self.end : stop] = seqs - self._first_seq
        self._dues[self.end : stop] = dues_ms - self._first_due_ms
        self.end, self.last_due_ms = stop, int(dues_ms[-1])

    def _make_room(self, count: int, is_pending: PendingMask) -> None:
        self.keep(is_pending(self.seqs(0, self.end)))
        needed = self.end + count
        if 2 * needed > len(self._seqs):
            capacity = max(_CAPACITY_MIN, 2 * needed)
            self._seqs = np.concatenate((self._seqs[: self.end], np.empty(capacity - self.end, np.uint32)))
            self._dues = np.concatenate((self._dues[: self.end], np.empty(capacity - self.end, np.uint32)))

    def keep(self, wanted: Flags) -> None:
        """Forget the rows that are not wanted."""
        if wanted.all():
            return
        kept = int(wanted.sum())
        self._seqs[:kept] = self._seqs[: self.end][wanted]
        self._dues[:kept] = self._dues[: self.end][wanted]
        self.taken, self.end, self._settled = int(wanted[: self.taken].sum()), kept, 0

    def seqs(self, start: int, stop: int) -> I64:
        return self._first_seq + self._seqs[start:stop].astype(np.int64)

    def dues_ms(self, start: int, stop: int) -> I64:
        return self._first_due_ms + self._dues[start:stop].astype(np.int64)

    def due_count(self, now_ms: int) -> int:
        """How many of the rows not taken yet are due."""
        since_ms = now_ms - self._first_due_ms
        if since_ms < 0 or self.taken == self.end or int(self._dues[self.taken]) > since_ms:
            return 0
        if int(self._dues[self.end - 1]) <= since_ms:
            return self.end - self.taken
        return int(np.searchsorted(self._dues[self.taken : self.end], np.uint32(since_ms), "right"))

    def next_due_ms(self) -> int | None:
        return self._first_due_ms + int(self._dues[self.taken]) if self.taken < self.end else None

    def first_waiting(self, is_pending: PendingMask) -> tuple[int, int] | None:
        """Due time and seq of the first row that still waits."""
        while self._settled < self.end:
            stop = min(self.end, self._settled + _LOOK_ROWS)
            pending = np.flatnonzero(is_pending(self.seqs(self._settled, stop)))
            self._settled += int(pending[0]) if len(pending) else stop - self._settled
            if len(pending):
                at = self._settled
                return int(self.dues_ms(at, at + 1)[0]), int(self.seqs(at, at + 1)[0])
        return None


@dataclass(slots=True)
class _Queue:
    runs: list[_Run] = field(default_factory=list)
    waiting: int = 0


class LevelQueues:
    """All level queues. `is_pending` asks the ledger; it must know every seq that was added."""

    def __init__(self, is_pending: PendingMask) -> None:
        self._is_pending = is_pending
        self._queues: dict[int, _Queue] = {}
        self.waiting = 0
        self.next_due_ms: int | None = None  # of the rows not taken yet

    # -- coming and going -------------------------------------------------------------------------

    def add(self, seqs: I64, entries: Rows) -> None:
        """Take in the level messages among new entries."""
        on_level = (entries["flags"] & FLAG_LEVEL).nonzero()[0]
        if not len(on_level):
            return
        dues_ms = entries["deliver_at_ms"][on_level].astype(np.int64)
        delays_ms = dues_ms - entries["stored_at_ms"][on_level]
        for delay_ms, rows in _by_delay(delays_ms, entries["level"][on_level]):
            queue = self._queues.setdefault(delay_ms, _Queue())
            queue.waiting += len(rows)
            self._add_to(queue, seqs[on_level[rows]], dues_ms[rows])
        self.waiting += len(on_level)
        earliest_ms = int(dues_ms.min())
        self.next_due_ms = earliest_ms if self.next_due_ms is None else min(self.next_due_ms, earliest_ms)

    def _add_to(self, queue: _Queue, seqs: I64, dues_ms: I64) -> None:
        while len(seqs):
            follows = dues_ms >= np.maximum.accumulate(dues_ms)
            later_seqs, later_dues_ms = seqs[follows], dues_ms[follows]
            run = next((run for run in queue.runs if run.takes(later_seqs, later_dues_ms)), None)
            if run is None:
                run = _Run(int(later_seqs[0]), int(later_dues_ms[0]))
                queue.runs.append(run)
            run.add(later_seqs, later_dues_ms, self._is_pending)
            seqs, dues_ms = seqs[~follows], dues_ms[~follows]

    def settled(self, entries: Rows) -> None:
        """Entries of messages that wait no more."""
        if not self.waiting:
            return
        on_level = np.flatnonzero(entries["flags"] & FLAG_LEVEL)
        if len(on_level):
            delays_ms = entries["deliver_at_ms"][on_level] - entries["stored_at_ms"][on_level]
            for delay_ms, rows in _by_delay(delays_ms, entries["level"][on_level]):
                self._queues[delay_ms].waiting -= len(rows)
            self.waiting -= len(on_level)

    def cut_head(self, below_seq: int) -> None:
        """Forget seqs below `below_seq`; none of them is pending."""
        for queue in self._queues.values():
            for run in queue.runs:
                run.keep(run.seqs(0, run.end) >= below_seq)

    # -- taking -----------------------------------------------------------------------------------

    def take_due(self, now_ms: int, limit: int) -> tuple[I64, I64]:
        """Due times and seqs of what is due at `now_ms` and was not taken; the earliest `limit` of it.

        Each queue's rows are in order; the queues follow each other.
        """
        none = np.empty(0, np.int64)
        if self.next_due_ms is None or self.next_due_ms > now_ms:
            return none, none
        due = _earliest([run for run in self._runs() if run.due_count(now_ms)], now_ms, limit)
        dues_ms = np.concatenate([none, *(run.dues_ms(run.taken, run.taken + n) for run, n in due)])
        seqs = np.concatenate([none, *(run.seqs(run.taken, run.taken + n) for run, n in due)])
        for run, count in due:
            run.taken += count
        self._forget_empty()
        firsts = [first for run in self._runs() if (first := run.next_due_ms()) is not None]
        self.next_due_ms = min(firsts, default=None)
        return dues_ms, seqs

    def _runs(self) -> Iterator[_Run]:
        return (run for queue in self._queues.values() for run in queue.runs)

    def _forget_empty(self) -> None:
        """Drop runs in which no message waits any more."""
        for delay_ms, queue in list(self._queues.items()):
            if queue.waiting == 0:
                del self._queues[delay_ms]

    # -- looking ----------------------------------------------------------------------------------

    def due_seqs(self, from_ms: int, until_ms: int) -> list[I64]:
        """Seqs of rows not taken yet and due in `[from, until]`, in parts."""
        return [
            run.seqs(run.taken + run.due_count(from_ms - 1), run.taken + run.due_count(until_ms))
            for run in self._runs()
        ]

    def view(self) -> list[DelayView]:
        """What waits with each delay, the shortest first."""
        views = []
        self._forget_empty()
        for delay_ms, queue in sorted(self._queues.items()):
            firsts = [run.first_waiting(self._is_pending) for run in queue.runs]
            next_due_ms = min((first[0] for first in firsts if first is not None), default=None)
            views.append(DelayView(delay_ms, queue.waiting, next_due_ms))
        return views

    def first_waiting_seq(self) -> int | None:
        """The lowest seq that waits on a level."""
        firsts = [run.first_waiting(self._is_pending) for run in self._runs()]
        return min((first[1] for first in firsts if first is not None), default=None)


def _earliest(runs: list[_Run], now_ms: int, limit: int) -> list[tuple[_Run, int]]:
    """How many rows to take of each run, so that together they are the earliest `limit` by (due, seq)."""
    counts = [run.due_count(now_ms) for run in runs]
    if len(runs) == 1 or sum(counts) <= limit:
        return [(run, min(limit, count)) for run, count in zip(runs, counts, strict=True)]
    # The last moment of which everything can be taken, by halving; of the next one, the lowest seqs.
    whole_ms, too_many_ms = min(run.next_due_ms() or 0 for run in runs) - 1, now_ms
    while too_many_ms - whole_ms > 1:
        middle_ms = (whole_ms + too_many_ms) // 2
        if sum(run.due_count(middle_ms) for run in runs) <= limit:
            whole_ms = middle_ms
        else:
            too_many_ms = middle_ms
    counts = [run.due_count(whole_ms) for run in runs]
    tied = [
        run.seqs(run.taken + count, run.taken + run.due_count(too_many_ms))
        for run, count in zip(runs, counts, strict=True)
    ]
    last_seq = int(np.partition(np.concatenate(tied), limit - sum(counts))[limit - sum(counts)])
    return [
        (run, count + int(np.searchsorted(seqs, last_seq)))
        for run, count, seqs in zip(runs, counts, tied, strict=True)
    ]


def _by_delay(delays_ms: I64, levels: Rows) -> Iterator[tuple[int, I64]]:
    """Each delay with the indexes of its rows, in their order."""
    first_ms = int(delays_ms[0])
    if len(delays_ms) == 1 or (delays_ms == first_ms).all():
        yield first_ms, np.arange(len(delays_ms))
        return
    # Two bytes sort in a tenth of the time; nearly always levels and delays go together.
    order = np.argsort(levels, kind="stable")
    starts = _starts(delays_ms[order])
    if not np.array_equal(_starts(levels[order]), starts) or len(
        set(delays_ms[order[starts]].tolist())
    ) != len(starts):
        order = np.argsort(delays_ms, kind="stable")
        starts = _starts(delays_ms[order])
    yield from zip(delays_ms[order[starts]].tolist(), np.split(order, starts[1:]), strict=True)


def _starts(values: Rows) -> I64:
    """Where another value begins."""
    return np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
