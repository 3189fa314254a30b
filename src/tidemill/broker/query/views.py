"""Views: pending messages, the forecast, status. Reads and shapes; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.query.damage_views import message_of_entry, message_of_row
from tidemill.broker.query.due_windows import DueWindows
from tidemill.broker.query.message_history import MessageHistory, MessageView
from tidemill.broker.query.status import Status
from tidemill.broker.query.wait_views import reason_of
from tidemill.core.answers import GroupInfo, Minute, PendingMessage, TopicInfo
from tidemill.core.arguments import NO_LIMIT, require_int, require_whole
from tidemill.core.durations import require_forward
from tidemill.core.limits import MAX_DELAY_MS, MINUTE_MS
from tidemill.core.model import Handle, StoredMessage
from tidemill.log.arrays import I64, Rows
from tidemill.release.backlogs import WaitReason
from tidemill.store.consumers.consumer_state import GroupQueue, Progress
from tidemill.store.due_counts import minute_columns
from tidemill.store.message_store import MessageStore

_FOREVER_MS = 1 << 62
_BEYOND_MS = 1 << 52  # no due time is so late
# So many of the earliest may be released while they are looked for, and the answer is full all the same.
_SETTLED_MEANWHILE = 1024
ALL_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class CloseReport:
    """What was waiting when the broker closed."""

    pending: int
    next_due_ms: int | None
    open_transactions: int = 0  # halves that wait for their ends


class Views:
    """Reads for clients and operators. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        broker_id: str,
        now_ms: Callable[[], int],
        status: Callable[[], Status],
    ) -> None:
        self._store = store
        self._topics = topics
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._status = status
        self.due = DueWindows(store, topics, now_ms)
        self.messages = MessageHistory(store, topics, broker_id)

    def pending(
        self,
        *,
        topic_name: str | None = None,
        key: str | None = None,
        from_ms: int = 0,
        to_ms: int = _FOREVER_MS,
        limit: int = 100,
    ) -> list[PendingMessage]:
        """Messages that wait, earliest due first."""
        require_whole("limit", limit, 0, NO_LIMIT)
        require_int("from_ms", from_ms)
        require_int("to_ms", to_ms)
        require_forward(from_ms, to_ms)
        topic_id = self._topics.existing(topic_name).id if topic_name is not None else None
        if key is not None:
            with self._store.read():
                keyed = self._with_key(topic_id, key, from_ms, to_ms, limit)
            return self._explained(self._messages(keyed, limit))
        # The writer's lock is taken for a part at a time: a look at ten million must not hold up a release.
        seqs = self._earliest_pending(topic_id, from_ms, to_ms, limit + _SETTLED_MEANWHILE)
        return self._explained(self._messages(seqs, limit))

    def count_pending(
        self,
        *,
        topic_name: str | None = None,
        key: str | None = None,
        from_ms: int = 0,
        to_ms: int = _FOREVER_MS,
    ) -> int:
        """How many messages `pending` would return without a limit."""
        require_int("from_ms", from_ms)
        require_int("to_ms", to_ms)
        require_forward(from_ms, to_ms)
        topic_id = self._topics.require(topic_name).id if topic_name is not None else None
        if key is not None:
            with self._store.read():
                return len(self._with_key(topic_id, key, from_ms, to_ms, NO_LIMIT))
        if from_ms % MINUTE_MS == 0 and (to_ms % MINUTE_MS == 0 or to_ms >= _BEYOND_MS):
            with self._store.read():
                counted = self._store.due_counts.snapshot(topic_id)
            first, end = from_ms // MINUTE_MS, to_ms // MINUTE_MS
            return sum(n for minutes in counted.values() for m, n in minutes.items() if first <= m < end)
        # Parts of a minute are counted from the entries, the writer's lock held for a part at a time.
        return sum(len(seqs) for seqs, _ in self._store.scan_pending(topic_id, from_ms, to_ms))

    def close_report(self) -> CloseReport:
        counts = self._store.due_counts
        pending = sum(counts.pending(topic.id) for topic in self._store.topics)
        waiting = self._messages(self._earliest_pending(None, 0, _FOREVER_MS, 1), 1) if pending else []
        next_due_ms = waiting[0].deliver_at_ms if waiting else None
        return CloseReport(pending, next_due_ms, len(self._store.open_transactions))

    def _with_key(self, topic_id: int | None, key: str, from_ms: int, to_ms: int, limit: int) -> I64:
        ids = [topic_id] if topic_id is not None else [topic.id for topic in self._store.topics]
        seqs = np.array([s for i in ids for s in self._store.seqs_with_key(i, key)], np.int64)
        due = self._store.entries.take(seqs)["deliver_at_ms"].astype(np.int64)
        inside = (due >= from_ms) & (due < to_ms)
        return _earliest(seqs[inside], due[inside], limit)

    def _earliest_pending(self, topic_id: int | None, from_ms: int, to_ms: int, limit: int) -> I64:
        """The first `limit` seqs by due time; the due counts say how far ahead one has to look for them."""
        with self._store.read():
            counted = self._store.due_counts.snapshot(topic_id)
        to_ms = min(to_ms, _enough_until_ms(counted, from_ms, limit))
        best_seqs, best_due = np.empty(0, np.int64), np.empty(0, np.int64)
        for seqs, rows in self._store.scan_pending(topic_id, from_ms, to_ms):
            due = rows["deliver_at_ms"].astype(np.int64)
            best_seqs, best_due = np.concatenate((best_seqs, seqs)), np.concatenate((best_due, due))
            if len(best_seqs) > 4 * limit:
                order = np.argpartition(best_due, limit)[:limit]
                best_seqs, best_due = best_seqs[order], best_due[order]
        return _earliest(best_seqs, best_due, limit)

    def _messages(self, seqs: I64, limit: int) -> list[PendingMessage]:
        """The first `limit` that still wait. Messages are read one by one and outside the writer's lock.

        A hundred of them may lie in a hundred large frames: under one lock, releases would wait for all.
        """
        ledger, found = self._store.ledger, list[PendingMessage]()
        for seq in seqs.tolist():
            if len(found) == limit:
                break
            with self._store.read():  # the head is cut under it; a section at hand stays readable
                if not ledger.is_pending(seq):
                    continue
                entry = self._store.entry(seq).copy()
                section = self._store.readable_section(int(entry["place"]) >> 16)
            message = section.message(int(entry["place"]) & 0xFFFF) if section is not None else None
            found.append(self._pending_message(seq, entry, message))
        return found

    def _explained(self, found: list[PendingMessage]) -> list[PendingMessage]:
        """The same; those that are due say what they wait for."""
        now_ms = self._now_ms()
        due = {message.seq: message.topic for message in found if message.deliver_at_ms <= now_ms}
        reasons = self.reasons(due)
        return [replace(message, waits_for=reasons.get(message.seq)) for message in found] if due else found

    def reasons(self, due: Mapping[int, str]) -> dict[int, WaitReason]:
        """What due messages wait for, by seq, as far as a reason is known; `due` has their topics."""
        if not due:
            return {}
        status, ledger, found = self._status(), self._store.ledger, dict[int, WaitReason]()
        for seq, topic in due.items():
            with self._store.read():
                flags = int(self._store.entry(seq)["flags"]) if ledger.is_pending(seq) else None
            if flags is not None:
                is_absorbed = seq < status.holds.absorb_below_seq
                reason = reason_of(status.waits, topic, flags, is_absorbed=is_absorbed)
                if reason is not None:
                    found[seq] = reason
        return found

    def _pending_message(self, seq: int, entry: Rows, read: StoredMessage | None) -> PendingMessage:
        message = read or message_of_entry(entry)
        topic = self._store.topics.by_id(message.topic_id)
        name = topic.name if topic is not None else ""
        return PendingMessage(
            seq=seq,
            topic=name,
            id=message.id,
            keys=message.keys,
            tag=message.tag,
            stored_at_ms=message.stored_at_ms,
            deliver_at_ms=message.deliver_at_ms,
            size=int(entry["size"]),
            handle=Handle(self._broker_id, name, message.id, seq),
            is_damaged=read is None,
            body_bytes=None if read is None else len(read.body),
        )

    def forecast(self, *, topic_name: str | None = None, horizon_ms: int) -> list[Minute]:
        """Messages due in each minute of the horizon; overdue ones count now."""
        require_whole("the horizon in ms", horizon_ms, 1, MAX_DELAY_MS)
        topic_id = self._topics.existing(topic_name).id if topic_name is not None else None
        now_ms = self._now_ms()
        # The minute that is under way, and all until the horizon, which ends within one too.
        first, end = now_ms // MINUTE_MS, -(-(now_ms + horizon_ms) // MINUTE_MS)
        with self._store.read():
            counts = self._store.due_counts.minutes(topic_id, first, end)
            overdue = self._store.due_counts.minutes(topic_id, 0, first)
        counts[first] = counts.get(first, 0) + sum(overdue.values())
        return [Minute(minute * MINUTE_MS, counts.get(minute, 0)) for minute in range(first, end)]

    def topics(self) -> list[TopicInfo]:
        store = self._store
        with store.read():
            return [
                TopicInfo(
                    topic.name,
                    topic.type,
                    topic.queue_count,
                    topic.is_paused,
                    topic.release_rate_max,
                    store.due_counts.pending(topic.id),
                    *store.totals.of_topic(topic.id),
                    visible=sum(store.topics.offsets_of(topic)),
                )
                for topic in store.topics
            ]

    def groups(self) -> list[GroupInfo]:
        consumers, topics = self._store.consumers, self._store.topics
        views = []
        with consumers.lock:
            for group in consumers.state.groups():
                lag: dict[str, int] = {}
                unsettled: dict[str, int] = {}
                read = {
                    group_queue[1]
                    for group_queue, _ in consumers.state.group_queues()
                    if group_queue[0] == group.id
                }
                for topic in (topic for topic in topics if topic.id in read):
                    group_queues = [(group.id, topic.id, queue_id) for queue_id in range(topic.queue_count)]
                    progresses = [consumers.state.progress(group_queue) for group_queue in group_queues]
                    lag[topic.name] = sum(
                        map(self._behind, group_queues, progresses, repeat(group.starts_first))
                    )
                    unsettled[topic.name] = sum(len(p.taken) for p in progresses if p is not None)
                views.append(
                    GroupInfo(group.name, group.attempts_max, group.is_fifo, lag, unsettled, group.backoff)
                )
        return views

    def _behind(self, group_queue: GroupQueue, progress: Progress | None, starts_first: bool) -> int:
        """Messages of a queue that a group was not given yet; it may not have looked at it so far.

        What has expired will not be given any more and does not count.
        """
        if progress is None and not starts_first:
            return 0
        first_live = self._store.queues.first_live(group_queue[1:], self._store.log.head)
        next_offset = progress.next_offset if progress is not None else 0
        return self._store.queues.end(group_queue[1:]) - max(next_offset, first_live)

    def read(
        self,
        topic_name: str,
        queue_id: int,
        first_offset: int,
        count: int,
        *,
        bytes_max: int = ALL_BYTES,
    ) -> list[MessageView]:
        """Messages of a queue by offset; what has expired is left out.

        Ends with the one whose body takes it over `bytes_max`.
        """
        topic = self._topics.existing(topic_name)
        rows = self._store.queues.read((topic.id, queue_id), first_offset, first_offset + count)
        found: list[MessageView] = []
        bytes_left = bytes_max
        for index, row in enumerate(rows):
            if bytes_left <= 0:
                break
            place = int(row["place"])
            if not self._store.is_expired(place):
                read = self._store.readable(place)
                message = read or message_of_row(topic.id, queue_id, row)
                bytes_left -= len(message.body)
                one = MessageView(message, is_damaged=read is None)
                found.append(one.in_queue(queue_id, first_offset + index, row))
        return found

    def find(
        self, topic_name: str, key: str, *, bytes_max: int = ALL_BYTES, count_max: int = NO_LIMIT
    ) -> list[MessageView]:
        """Messages with this key that are still in the log, and what became of each, newest first.

        Ends with the one whose body takes it over `bytes_max`.
        """
        return self.messages.with_key(topic_name, key, bytes_max, count_max)


def _earliest(seqs: I64, due: I64, limit: int) -> I64:
    order = np.lexsort((seqs, due))[:limit]
    return seqs[order]


def _enough_until_ms(counted: dict[int, dict[int, int]], from_ms: int, limit: int) -> int:
    """A time by which at least `limit` messages fall due from `from_ms` on; for ever if fewer do."""
    columns = [minute_columns(minutes) for minutes in counted.values()]
    minutes = np.concatenate([np.empty(0, np.int64), *(minutes for minutes, _ in columns)])
    counts = np.concatenate([np.empty(0, np.int64), *(counts for _, counts in columns)])
    # The minute in which `from_ms` lies may hold only earlier ones, so it does not count.
    later = minutes > from_ms // MINUTE_MS
    order = np.argsort(minutes[later], kind="stable")
    reached = np.searchsorted(np.cumsum(counts[later][order]), limit)
    return int((minutes[later][order][reached] + 1) * MINUTE_MS) if reached < len(order) else _FOREVER_MS
