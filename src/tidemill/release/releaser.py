"""The releaser: puts each message into its topic at its millisecond, once, never early.

Owns the near set, the ready reader, the topics' backlogs and the order of a release: everything due of near,
levels and ready in one pass, pending and distinct, append the release record (bits flip), sync, queue rows,
wake consumers (the last four are `CommitLog.release` and `finish`). Several records may be on their way from
append to queue rows (`commit_window.py`); the order stays that of the appends. Whatever is handed over twice,
late or wrongly: it takes only what the ledger has pending, takes due time and place from the entry, and never
goes before the wall clock.

`step(now)` does what is due and says when to come again: two milliseconds early, so that what to release is
worked out before the moment and only the record, its sync and the queue rows come after it. When nothing due
is left it looks now and then whether anything was forgotten (`sweeper.py`). One thread calls it; `add_near`
may be called from any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from tidemill.core.clock import Clock, stopwatch_s
from tidemill.core.errors import DiskFullError
from tidemill.core.model import NEVER_ROLLED, Via
from tidemill.log.arrays import I64, Flags, Rows, picked
from tidemill.release.backlogs import Backlogs, ReleaseWait, WaitReason
from tidemill.release.commit_window import CommitWindow, Pacing
from tidemill.release.due_rows import (
    NO_ROWS,
    distinct,
    due_rows,
    in_order_of_arrival,
    joined,
    release_batch,
    seqs_between,
    take_due_levels,
    waited_for,
)
from tidemill.release.due_set import DueSet
from tidemill.release.lateness import ReleaseFigures
from tidemill.release.overdue import OverdueScan, earliest_overdue
from tidemill.release.ready_reader import ReadyReader, ShardsSeen
from tidemill.release.sweeper import InMemory, Sweeper, SweepScan
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_MOVED
from tidemill.store.message_store import MessageStore

RELEASE_ROWS_MAX = 1 << 18

# With more rows than this not absorbed, the shards are too far behind for anything to be missed.
_UNABSORBED_MAX = 1 << 22
_WAITING_PAUSE_MS = 20
_AHEAD_MS = 2
_NO_LIMIT_MS = 1 << 62


class Releaser:
    """Releases what is due. `step` is for one thread."""

    def __init__(
        self,
        store: MessageStore,
        ready: ReadyReader,
        *,
        clock: Clock,
        look_at_shards: Callable[[], ShardsSeen],
        handed_over_ms: Callable[[], int],
        has_threads: bool,
        wake: Callable[[], None],
        on_lost: Callable[[I64], None],
        is_held: Callable[[], bool] = lambda: False,
        rows_max: int = RELEASE_ROWS_MAX,
    ) -> None:
        """`on_lost` hears the seqs of due messages that a shard should have handed over and did not. While
        `is_held`, nothing is released and nothing is swept; what is due stays where it is."""
        self._is_held = is_held
        self._store = store
        self._ready = ready
        self.rows_max = rows_max  # of one release record
        self._clock = clock
        self._ahead_ms = 0 if clock.is_simulated else _AHEAD_MS
        self._look_at_shards = look_at_shards
        self._handed_over_ms = handed_over_ms
        self._lock = threading.Lock()  # protects the near set
        self._near = DueSet()
        self._waiting = DueSet()  # taken and not released: put off, or without space on the disk
        self._put_off: list[Rows] = []  # what this step may not release: waits when it is over
        self.backlogs = Backlogs(store.topics)
        self.figures = ReleaseFigures(store.topic_names, clock.now_ms)
        self.lateness = self.figures.lateness
        self._pacing = Pacing(0) if clock.is_simulated else Pacing()
        self._window = CommitWindow(
            store.settings.commits_in_flight if store.settings.is_sync else 1,
            store.finish,
            self.figures.note,
            has_pool=has_threads and not clock.is_simulated,
            on_trouble=wake,
        )
        self._lacking_space = 0  # rows that found no space on the disk in the last step
        self._scan: OverdueScan | None = None
        self.sweeper = Sweeper(store, clock, on_lost)
        self._seen = look_at_shards()
        self._fifo_below_ms = _NO_LIMIT_MS
        self._waited_for_scan = False  # a FIFO message did, in this step
        self._ready_changed = threading.Event()
        self.next_wake_ms: int | None = None

    # -- what waits -------------------------------------------------------------------------------

    def add_near(self, deliver_at_ms: I64, seqs: I64) -> None:
        """Messages due soon, whose frame is safe."""
        rows = due_rows(deliver_at_ms, seqs, Via.NEAR, NEVER_ROLLED)
        with self._lock:
            self._near.add(rows)

    @property
    def near_count(self) -> int:
        return self._near.count

    @property
    def ready_count(self) -> int:
        return self._ready.count

    def near_due_count(self, now_ms: int) -> int:
        """Near messages that are due and not taken yet."""
        with self._lock:
            return self._near.due_count(now_ms)

    def earliest_ms(self) -> int | None:
        """The earliest due time of what is in memory and in no backlog; a look from any thread."""
        with self._lock:
            near_ms = self._near.next_due_ms()
        levels_ms = self._store.levels.next_due_ms
        found = (near_ms, levels_ms, self._waiting.next_due_ms(), self._ready.next_due_ms())
        return min((due_ms for due_ms in found if due_ms is not None), default=None)

    def due_seqs(self, from_ms: int, until_ms: int) -> I64:
        """Seqs due in `[from, until]` that are here and not released; a look from any thread."""
        with self._lock:
            near = self._near.due_seqs(from_ms, until_ms)
        with self._store.read():
            levels = self._store.levels.due_seqs(from_ms, until_ms)
        waiting, ready = self._waiting.due_seqs(from_ms, until_ms), self._ready.due_seqs(from_ms, until_ms)
        backlogs = [seqs_between(rows, from_ms, until_ms) for rows in self.backlogs.rows().values()]
        return np.concatenate([NO_ROWS["seq"], *near, *levels, *waiting, *ready, *backlogs])

    def waits(self, now_ms: int) -> list[ReleaseWait]:
        """What due messages wait for just now; a look from any thread."""
        found = self.backlogs.waits()
        if self._lacking_space:
            found.append(ReleaseWait(WaitReason.DISK_SPACE, self._lacking_space))
        elif waiting := self._waiting.due_count(now_ms):
            found.append(ReleaseWait(WaitReason.ORDER, waiting))
        if missing := self.sweeper.missing_count:
            found.append(ReleaseWait(WaitReason.SWEEP, missing))
        if self._window.is_full:
            found.append(ReleaseWait(WaitReason.COMMIT, len(self._window.seqs())))
        return found

    def ready_changed(self) -> None:
        """Ready files were handed over: look at them in the next step."""
        self._ready_changed.set()

    def recover(self) -> None:
        """Find again what waited when the broker stopped: near messages, ready files, overdue backlogs."""
        store = self._store
        with store.read():
            seqs = store.pending_near()
            due = store.entries.take(seqs)["deliver_at_ms"].astype(np.int64)
            ledger = store.ledger
            handed_over_ms, held_seq = self._handed_over_ms(), self._seen.held_seq
            self._scan = OverdueScan(ledger.head_seq, ledger.next_seq, handed_over_ms, held_seq)
        self.add_near(due, seqs)
        self._ready.look()

    # -- the step ---------------------------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Release everything due at `now_ms`, in bounded batches; returns when to take the next step."""
        self._window.resume()
        self._keep_what_was_put_off()
        # In this order: what is safe is known before the ready files that make it so are looked at; and they
        # are looked at whenever the shards have moved, also if another process moved them a moment ago.
        seen = self._seen = self._look_at_shards()
        self._fifo_below_ms = _NO_LIMIT_MS
        if seen.have_moved or self._ready_changed.is_set():
            self._ready_changed.clear()
            self._ready.look()
        while not self._is_held():
            rows, has_more = self._take_due(now_ms)
            is_ahead = not len(rows) and not has_more
            if is_ahead:
                rows, now_ms, is_pressed = self._take_ahead(now_ms)
            else:
                is_pressed = has_more or self._is_pressed(now_ms)
            if len(rows):
                self._release(rows, now_ms, is_pressed)
                has_more = has_more or (is_ahead and not self._pacing.pauses(self._clock.now_ms()))
            if not (has_more or self._can_take_up_what_was_put_off() or self._must_sweep(now_ms)):
                break
            now_ms = self._clock.now_ms()
        self._keep_what_was_put_off()
        self._window.settle_step()
        self._lacking_space = 0
        self._ready.sweep(self._still_needed)
        self.next_wake_ms = None if self._is_held() else self._next_wake_ms(now_ms)
        if self.next_wake_ms is None:
            return None
        come_ms = self.next_wake_ms - self._ahead_ms
        return max(come_ms, self._pacing.until_ms) if self._pacing.pauses(self._clock.now_ms()) else come_ms

    def _take_ahead(self, now_ms: int) -> tuple[Rows, int, bool]:
        """Work out what falls due in a moment; returns it, the time, and the pressure, when that has come."""
        due_ms = self._next_wake_ms(now_ms)
        if due_ms is None or self._pacing.pauses(now_ms) or not now_ms < due_ms <= now_ms + self._ahead_ms:
            return NO_ROWS, now_ms, False
        rows, has_more = self._take_due(due_ms)
        if not len(rows):
            return NO_ROWS, now_ms, False
        is_pressed = has_more or self._is_pressed(due_ms)
        self._clock.doze(due_ms)
        if self._clock.now_ms() < due_ms:  # the clock was set back
            self._waiting.add(rows)
            return NO_ROWS, now_ms, False
        return rows, due_ms, is_pressed

    def _take_due(self, now_ms: int) -> tuple[Rows, bool]:
        with self._lock:
            near = self._near.take_due(now_ms, self.rows_max)
        levels = take_due_levels(self._store, now_ms, self.rows_max)
        waiting = self._waiting.take_due(now_ms, self.rows_max)
        ready = self._ready.take_due(now_ms, self.rows_max)
        overdue = self._scan_some(now_ms)
        # Of a row that comes twice the first counts, and a ready file knows most about it.
        merged = joined([near, levels, ready, waiting, overdue])
        # Each source gave its earliest; only what comes before the last row of a full one is complete.
        fullest = max(map(len, (near, levels, waiting, ready)))
        has_more = fullest >= self.rows_max or self._scan is not None
        rows, later = merged[: self.rows_max], merged[self.rows_max :]
        if len(later):
            self._waiting.add(later)
            has_more = True
        return self._permitted(distinct(rows), now_ms), has_more

    def _keep_what_was_put_off(self) -> None:
        """Not before the step is over: it would take the same rows again, and again."""
        while self._put_off:
            self._waiting.add(self._put_off.pop())

    def _can_take_up_what_was_put_off(self) -> bool:
        """True when only the look through the entries was waited for, and it is over: then all anew."""
        if not self._waited_for_scan or self._scan is not None:
            return False
        self._keep_what_was_put_off()
        self._fifo_below_ms, self._waited_for_scan = _NO_LIMIT_MS, False
        return True

    def _fifo_limit_ms(self) -> int:
        """FIFO messages due at or after this wait. It never rises in a step: what waits is not overtaken."""
        # While entries are still looked through, an earlier message of the group may yet turn up.
        self._waited_for_scan = self._waited_for_scan or self._scan is not None
        safe_ms = self._seen.fifo_safe() if self._scan is None else 0
        self._fifo_below_ms = min(self._fifo_below_ms, safe_ms)
        return self._fifo_below_ms

    def _permitted(self, rows: Rows, now_ms: int) -> Rows:
        """Without what is settled, what must wait for its group's order, and what its topic holds back."""
        store = self._store
        with store.read():
            rows = picked(rows, store.ledger.pending_mask(rows["seq"]))
            entries = store.entries.take(rows["seq"])
        if (rows["deliver_at_ms"] != entries["deliver_at_ms"]).any():  # handed over wrongly
            rows["deliver_at_ms"] = entries["deliver_at_ms"]
            order = np.lexsort((rows["seq"], rows["deliver_at_ms"]))
            rows, entries = picked(rows, order), picked(entries, order)
        waits = entries["deliver_at_ms"] > now_ms
        is_fifo = entries["flags"] & FLAG_FIFO != 0
        if is_fifo.any():
            waits |= is_fifo & (entries["deliver_at_ms"] >= self._fifo_limit_ms())
        if waits.any():
            self._put_off.append(picked(rows, waits))
            rows, entries = picked(rows, ~waits), picked(entries, ~waits)
        permitted = self.backlogs.admit(rows, entries["topic_id"], now_ms)
        for topic_id in self.backlogs.spilled():
            self._refill(topic_id, now_ms)
        if permitted is rows and not (entries["flags"] & FLAG_MOVED).any():
            return permitted
        return in_order_of_arrival(self._store, permitted)

    def _release(self, rows: Rows, now_ms: int, is_pressed: bool) -> None:
        """Let rows go; what could not go (no space on the disk) is kept for the next step."""
        try:
            while len(rows):
                rows = self._release_some(rows, now_ms, is_pressed)
        except DiskFullError:
            self._lacking_space = len(rows)
            raise
        finally:
            if len(rows):
                self._waiting.add(rows)

    def _release_some(self, rows: Rows, now_ms: int, is_pressed: bool) -> Rows:
        """Let as many rows go as fit one record; returns the rest."""
        store, planned_s = self._store, stopwatch_s()
        with store.write() as tx:
            rows = picked(rows, tx.ledger.pending_mask(rows["seq"]))
            batch = release_batch(store, rows[: self.rows_max], now_ms)
            if not len(batch.rows):
                return rows
            appended = tx.release(
                batch.rows["seq"].astype(np.int64),
                batch.entries,
                batch.rows["via"],
                batch.rows["placements"],
                now_ms,
                batch.messages,
                batch.is_value,
            )
        rest = rows[len(batch.rows) :]
        expected = waited_for(batch.rows, batch.since_ms, now_ms)
        self._pacing.record_made(self._clock.now_ms())
        may_overlap, topic_ids = is_pressed or len(rest) > 0, batch.entries["topic_id"]
        self._window.put(appended, expected, topic_ids, planned_s=planned_s, may_overlap=may_overlap)
        return rest

    def _is_pressed(self, now_ms: int) -> bool:
        """True when something falls due before a record appended now is likely to be safe.

        Otherwise the releaser's thread may as well sync the record itself, which is the shortest way.
        """
        wake_ms = self._next_wake_ms(now_ms)
        return wake_ms is not None and wake_ms <= now_ms + self._window.last_ms

    def _next_wake_ms(self, now_ms: int) -> int | None:
        with self._lock:
            wakes = [self._near.next_due_ms(), self._store.levels.next_due_ms]
        waiting_ms = self._waiting.next_due_ms()
        # What waits although it is due waits for the pipeline; look again a little later.
        wakes.append(None if waiting_ms is None else max(waiting_ms, now_ms + _WAITING_PAUSE_MS))
        wakes.extend((self._ready.next_due_ms(), self.backlogs.next_wake_ms(now_ms)))
        return min((wake for wake in wakes if wake is not None), default=None)

    # -- looking through the entries --------------------------------------------------------------

    def _scan_some(self, now_ms: int) -> Rows:
        """One bounded look for pending messages that were not handed over."""
        scan = self._scan
        if scan is None:
            return NO_ROWS
        rows = scan.some(self._store, now_ms)
        if scan.is_over:
            self._scan = None
            if isinstance(scan, SweepScan):
                self.sweeper.is_over(scan)
        return rows

    def _must_sweep(self, now_ms: int) -> bool:
        """With nothing due left to take: True when a scan begins for what was forgotten."""
        self._scan = self.sweeper.look(now_ms, self._passed_ms, self._in_memory)
        return self._scan is not None

    def _passed_ms(self) -> int:
        """Before which time all that is due has been handed over; 0 where that would be long to find out."""
        return self._seen.fifo_safe() if self._seen.unabsorbed <= _UNABSORBED_MAX else 0

    def _in_memory(self) -> InMemory:
        others = [*self._put_off, *self._waiting.runs()]
        return InMemory(self.backlogs.rows(), others, self.backlogs.spilled_ids())

    def _refill(self, topic_id: int, now_ms: int) -> None:
        """Find the rows that a topic's backlog had no space for; the earliest of them, if they are many."""
        until_ms, fifo_below_ms = max(now_ms, self._handed_over_ms()), self._fifo_limit_ms()
        rows_max, held_seq = self.backlogs.rows_max, self._seen.held_seq
        limits = (until_ms, fifo_below_ms, rows_max, held_seq)
        kept, is_complete = earliest_overdue(self._store, topic_id, *limits)
        self.backlogs.refill(topic_id, kept, is_complete)

    def _still_needed(self, seqs: I64) -> Flags:
        """Rows of a ready file that must be found again after a crash.

        Those are pending and in no backlog, or their release record is not safe yet. What a backlog holds is
        found by the look through the entries, unless it was handed over too early for that: the timer may
        have read a damaged entry.
        """
        store = self._store
        with store.read():
            needed = store.ledger.pending_mask(seqs)
            chosen = np.flatnonzero(needed)
            entries = store.entries.take(seqs[chosen])
        held = self.backlogs.holds(entries["topic_id"])
        if held.any():
            held &= entries["deliver_at_ms"] < self._handed_over_ms()
        needed[chosen[held]] = False
        if self._window.count:
            needed |= np.isin(seqs, self._window.seqs())
        return needed

    def close(self) -> None:
        """Let go of the threads. Call when no step is taken any more."""
        self._window.close()
