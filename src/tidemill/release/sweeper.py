"""The sweep: finds due messages that the timer, or a set in memory, has forgotten, and gives them back.

Owns the looks (is anything pending of the minutes that are over, and not in memory?), the scan that such a
look begins, when a minute is scanned again, and how many messages were found. Leaves to others: the release,
and building the shards again that lost something (`on_lost`).

A look compares the due counts with what is in memory, at a moment when everything due has been taken: what is
in memory (put off, or in a backlog) is all that may still be pending. It looks only at minutes that every
shard has passed. A scan goes through the entries in bounded parts, between releases. One that does not
explain a surplus is not repeated until the surplus grows or a pause has passed, which doubles each time: a
count that is wrong, or an entry that cannot be read, costs a scan now and then and never one after the other.

Invariants: a message that is in memory is never counted as swept; what is found goes the way of every
release, so a mistake here costs a scan and never a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemill.core.clock import Clock
from tidemill.core.durations import format_time
from tidemill.core.limits import MINUTE_MS
from tidemill.log.arrays import I64, Rows, picked
from tidemill.release.overdue import OverdueScan, overdue_rows
from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR
from tidemill.store.message_store import MessageStore

logger = logging.getLogger(__name__)

# Looks are so far apart, where time passes by itself. Two in a row begin a scan, so what was forgotten is
# found some ten seconds after its minute.
_LOOK_EVERY_MS = 5_000
# Rows in memory looked up under one hold of the writer lock.
_LOOK_ROWS = 1 << 16
_MINUTE_BITS = 32


@dataclass(frozen=True, slots=True)
class InMemory:
    """What is in memory when everything due was taken: rows by topic where that is known, and others."""

    by_topic: Mapping[int, Rows]
    others: Sequence[Rows]
    spilled: frozenset[int]  # topics that have more waiting than is in memory

    def seqs(self) -> I64:
        parts = [*self.by_topic.values(), *self.others]
        return np.concatenate([np.empty(0, np.int64), *(rows["seq"] for rows in parts)])


@dataclass(slots=True)
class SweepScan(OverdueScan):
    """A walk through the entries for pending messages of some minutes that are not in memory."""

    from_ms: int = 0
    seqs_in_memory: I64 | None = None
    found_count: int = 0
    far_count: int = 0
    on_lost: Callable[[I64], None] = lambda _: None

    def some(self, store: MessageStore, now_ms: int) -> Rows:
        first_seq, end_seq = self.next_part()
        rows = overdue_rows(store, first_seq, end_seq, self.handed_over_ms - 1)
        rows = picked(rows, rows["deliver_at_ms"] >= self.from_ms)
        if len(rows) and self.seqs_in_memory is not None:
            rows = picked(rows, ~np.isin(rows["seq"], self.seqs_in_memory))
        if len(rows):
            self.found_count += len(rows)
            self._tell_lost(store, rows)
        return rows

    def _tell_lost(self, store: MessageStore, rows: Rows) -> None:
        """Those that a shard should have handed over."""
        with store.read():
            rows = picked(rows, store.ledger.pending_mask(rows["seq"]))
            flags = store.entries.take(rows["seq"])["flags"]
        far = rows["seq"][flags & (FLAG_NEAR | FLAG_LEVEL) == 0]
        if len(far):
            self.far_count += len(far)
            self.on_lost(far)


Minutes = Mapping[int, int]  # minute -> messages

RETRY_MS_FIRST = 60_000
RETRY_MS_MAX = 3_600_000


def surplus(
    pending: Mapping[int, Minutes], in_memory: Mapping[int, Minutes], spilled: Collection[int]
) -> Minutes:
    """By minute, how many messages are pending and not in memory.

    `pending` and `in_memory` are by topic. Compared topic by topic, so that one with too many in memory
    (cancelled since) hides nothing of another. A `spilled` topic has more waiting than is in memory, and
    finds it by itself.
    """
    found: dict[int, int] = {}
    for topic_id, minutes in pending.items():
        if topic_id in spilled:
            continue
        minutes_in_memory = in_memory.get(topic_id, {})
        for minute, count in minutes.items():
            if (left := count - minutes_in_memory.get(minute, 0)) > 0:
                found[minute] = found.get(minute, 0) + left
    return found


@dataclass(slots=True)
class SweepRule:
    """Decides from one look to the next. With `needs_two_looks` a surplus counts when it lasts for two.

    That is for a broker with threads: a message may be stored and not yet handed over.
    """

    needs_two_looks: bool
    _seen: Minutes = field(default_factory=dict)
    _left: Minutes = field(default_factory=dict)  # what the last scan did not explain
    _has_scanned: bool = False  # since the last look
    _pause_ms: int = RETRY_MS_FIRST
    _retry_at_ms: int = 0

    def decide(self, found: Minutes, boot_ms: int) -> tuple[int, int] | None:
        """The minutes `[first, end)` to scan for this surplus, or None."""
        if self._has_scanned:
            self._note_left(found, boot_ms)
        lasting = _lowest(found, self._seen) if self.needs_two_looks else found
        self._seen, self._left = found, _lowest(self._left, found)
        wanted = [minute for minute, count in lasting.items() if count > self._left.get(minute, 0)]
        if not wanted and boot_ms >= self._retry_at_ms:
            wanted = list(lasting)
        if not wanted:
            return None
        self._has_scanned = True
        return min(wanted), max(wanted) + 1

    def _note_left(self, found: Minutes, boot_ms: int) -> None:
        self._has_scanned = False
        self._pause_ms = min(RETRY_MS_MAX, 2 * self._pause_ms) if found and self._left else RETRY_MS_FIRST
        self._left, self._retry_at_ms = found, boot_ms + self._pause_ms


def _lowest(one: Minutes, other: Minutes) -> Minutes:
    """The lower count of each minute that is in both."""
    return {minute: min(count, other[minute]) for minute, count in one.items() if minute in other}


class Sweeper:
    """Looks for what was forgotten. For the releaser's thread; the figures are for any."""

    def __init__(self, store: MessageStore, clock: Clock, on_lost: Callable[[I64], None]) -> None:
        """`on_lost` hears the seqs of messages that a shard should have handed over."""
        self._store = store
        self._clock = clock
        self._on_lost = on_lost
        self._rule = SweepRule(needs_two_looks=not clock.is_simulated)
        self._next_look_ms = clock.boot_ms()
        self._looked_until = -1  # minutes, where the clock is simulated
        self._safe_seq_before = 0
        self.swept_count = 0  # since the start
        self.missing_count = 0  # overdue and not in memory, at the last look

    def look(
        self, now_ms: int, passed_ms: Callable[[], int], in_memory: Callable[[], InMemory]
    ) -> SweepScan | None:
        """The scan to make now, if one is needed. Call when everything due has been taken.

        `passed_ms`: every message that is due before it has been handed over.
        """
        end_minute = now_ms // MINUTE_MS
        if not self._is_time(end_minute):
            return None
        counts = self._store.due_counts
        pending = counts.before(end_minute)
        if pending and (passed := passed_ms() // MINUTE_MS) < end_minute:
            end_minute = passed
            pending = counts.before(end_minute)
        self._looked_until = end_minute
        known = in_memory() if pending else None
        found = surplus(pending, self._minutes_of(known, end_minute), known.spilled) if known else {}
        self.missing_count = sum(found.values())
        safe_seq, self._safe_seq_before = self._safe_seq_before, self._store.safe_seq()
        minutes = self._rule.decide(found, self._clock.boot_ms())
        if minutes is None or known is None:
            return None
        first, end = minutes
        return SweepScan(
            self._store.ledger.head_seq,
            self._safe_seq_before if self._clock.is_simulated else safe_seq,
            handed_over_ms=end * MINUTE_MS,
            from_ms=first * MINUTE_MS,
            seqs_in_memory=known.seqs(),
            on_lost=self._on_lost,
        )

    def next_look_ms(self) -> int | None:
        """When a minute is over that has pending messages now; where the clock is simulated."""
        minute = self._store.due_counts.first(max(0, self._looked_until))
        return None if minute is None else (minute + 1) * MINUTE_MS

    def is_over(self, scan: SweepScan) -> None:
        """Count what a scan found, and say so."""
        if not scan.found_count:
            return
        self.swept_count += scan.found_count
        self.missing_count = max(0, self.missing_count - scan.found_count)
        logger.error(
            "%d messages due from %s to %s were missed (%d by the timer); found by the sweep and released",
            scan.found_count,
            format_time(scan.from_ms),
            format_time(scan.handed_over_ms),
            scan.far_count,
        )

    def _is_time(self, end_minute: int) -> bool:
        if self._clock.is_simulated:
            return end_minute != self._looked_until
        boot_ms = self._clock.boot_ms()
        if boot_ms < self._next_look_ms:
            return False
        self._next_look_ms = boot_ms + _LOOK_EVERY_MS
        return True

    def _minutes_of(self, in_memory: InMemory, end_minute: int) -> dict[int, dict[int, int]]:
        """Messages in memory that are pending, by topic and minute."""
        found: dict[int, dict[int, int]] = {}
        ledger = self._store.ledger
        for topic_id, rows in in_memory.by_topic.items():
            for part in _parts(rows, end_minute):
                with self._store.read():
                    is_pending = ledger.pending_mask(part["seq"])
                _count(found, part["deliver_at_ms"][is_pending], topic_id)
        for rows in in_memory.others:
            for part in _parts(rows, end_minute):
                with self._store.read():
                    seqs = part["seq"][ledger.pending_mask(part["seq"])]
                    entries = self._store.entries.take(seqs)
                for topic_id in np.unique(entries["topic_id"]).tolist():
                    _count(found, entries["deliver_at_ms"][entries["topic_id"] == topic_id], topic_id)
        return found


def _parts(rows: Rows, end_minute: int) -> list[Rows]:
    """The rows due before a minute, a bounded number at a time."""
    rows = rows[rows["deliver_at_ms"] < end_minute * MINUTE_MS]
    return [rows[start : start + _LOOK_ROWS] for start in range(0, len(rows), _LOOK_ROWS)]


def _count(found: dict[int, dict[int, int]], deliver_at_ms: I64, topic_id: int) -> None:
    minutes, counts = np.unique(deliver_at_ms // MINUTE_MS, return_counts=True)
    known = found.setdefault(topic_id, {})
    for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
        known[minute] = known.get(minute, 0) + count
