"""Receiving: at least once, with invisibility, attempts and dead letters.

Owns what a consumer group is given and in which order: messages whose lease has ended first, then new ones.
What becomes of a delivery (ack, invisibility) is `acks.py`'s.
Each delivery is logged (attempt, visible-at) before it is handed out. A message that used up its attempts
is not handed out again: it moves to `%DLQ%group`, in one frame that also settles it. For a consumer group set
to FIFO a message waits while an earlier one of its message group is out, whatever the topic's type; no other
consumer group waits.

A message whose bytes are damaged is not handed out: the group steps over it for good, as over an expired one.

Locks: the consumer log's lock may be taken inside the writer's, never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.consume.ack_tokens import DeliveryName, encode_ack_token
from tidemill.broker.consume.dead_letters import attempts_of, bury
from tidemill.broker.consume.queue_walk import walk
from tidemill.broker.send.admission import RETRY_PREFIX, check_group_name
from tidemill.core.arguments import require_kind, require_whole
from tidemill.core.errors import RequestError
from tidemill.core.levels import level_delays_ms
from tidemill.core.limits import ANSWER_BYTES_MAX, ATTEMPTS_MAX, BODY_BYTES_IN_COMPANY_MAX, DAY_MS
from tidemill.core.model import Delivery, StoredMessage, Via, rolls_of
from tidemill.log.arrays import Rows
from tidemill.store.consumers.consumer_log import change_rows
from tidemill.store.consumers.consumer_state import (
    ACT_CHANGE,
    ACT_CURSOR,
    ACT_SETTLE,
    ACT_SKIP,
    ACT_TAKE,
    Group,
    GroupQueue,
    Progress,
)
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

# How long a message on its way to the dead letters stays out of sight, should we die on the way.
_DEAD_LETTER_LEASE_MS = 60_000
_COUNT_MAX = 1_000_000
INVISIBLE_MS_MAX = 3650 * DAY_MS

TagFilter = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class _Found:
    """A message that may be handed out."""

    group_queue: GroupQueue
    offset: int
    attempt: int
    number: int  # of its deliveries; the attempts are those that were tried
    resets: int
    arrival: tuple[int, int, int]  # released at, via, placements
    message: StoredMessage


@dataclass(slots=True)
class _GroupsOut:
    """Message groups of which a message is out. One whose bytes are damaged since may be of any group."""

    names: set[str] = field(default_factory=set)
    has_unknown: bool = False

    def holds(self, message_group: str) -> bool:
        return self.has_unknown or message_group in self.names


class Receiver:
    """The receive verb, and the groups. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._topics = topics
        self._now_ms = now_ms
        self._turn = 0

    # -- groups -----------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """The group, made with default settings if it is new."""
        check_group_name(name)
        consumers = self._store.consumers
        with consumers.lock:
            found = consumers.state.group(name)
            if found is not None:
                return found
            group = consumers.state.new_group(name)
            end = consumers.put_group(group, self._now_ms())
        consumers.wait(end)
        return group

    def set_group(
        self,
        name: str,
        *,
        attempts_max: int | None = None,
        is_fifo: bool | None = None,
        starts_first: bool | None = None,
        backoff: str | None = None,
    ) -> Group:
        """Change a group's settings; `backoff` such as `10s 1m 5m`, empty for the default."""
        if attempts_max is not None:
            require_whole("the number of attempts", attempts_max, 1, ATTEMPTS_MAX)
        for flag, value in (("fifo", is_fifo), ("start", starts_first)):
            if value is not None:
                require_kind(flag, value, bool, "True or False")
        if backoff:
            require_kind("backoff", backoff, str, "a text such as '10s 1m 5m'")
            level_delays_ms(backoff)
        self.group(name)
        given: dict[str, Any] = {
            "attempts_max": attempts_max,
            "is_fifo": is_fifo,
            "starts_first": starts_first,
            "backoff": backoff,
        }
        consumers = self._store.consumers
        with consumers.lock:
            known = consumers.state.group(name)
            assert known is not None
            group = replace(known, **{k: v for k, v in given.items() if v is not None})
            end = consumers.put_group(group, self._now_ms())
        consumers.wait(end)
        return group

    def reset(self, group_name: str, topic_name: str, to_ms: int) -> None:
        """Let a group read a topic again from (or skip it to) the messages released at `to_ms`."""
        group, topic = self.group(group_name), self._topics.require(topic_name)
        consumers = self._store.consumers
        for queue_id in range(topic.queue_count):
            offset = self._store.queues.offset_at_time((topic.id, queue_id), to_ms)
            group_queue = (group.id, topic.id, queue_id)
            consumers.append(change_rows(ACT_CURSOR, group_queue, [offset], 0, 0), self._now_ms())
        consumers.save(self._store.finish_all())

    # -- receive ----------------------------------------------------------------------------------

    def receive(
        self,
        topic_name: str,
        group_name: str,
        *,
        count: int = 32,
        invisible_ms: int = 30_000,
        accepts_tag: TagFilter | None = None,
        one_per_message_group: bool = False,
    ) -> list[Delivery]:
        """Hand out up to `count` messages that are there now; each stays invisible for `invisible_ms`.

        In a FIFO group, `one_per_message_group` keeps back the second of a message group until the first
        is settled, so that a failure of the first does not find the second under way.
        An answer ends with the one that takes it over 16 MiB. One of 4 MiB is alone: some clients fail at it.
        """
        require_whole("count", count, 1, _COUNT_MAX)
        require_whole("invisible_ms", invisible_ms, 1, INVISIBLE_MS_MAX)
        group, topic = self.group(group_name), self._topics.require(topic_name)
        if topic.origins and topic.name != RETRY_PREFIX + group.name:
            raise RequestError(f"{topic.name!r} is the retry topic of another group; receive from your own")
        now_ms = self._now_ms()
        found: list[_Found] = []
        dead: list[_Found] = []
        end = 0
        consumers = self._store.consumers
        with consumers.lock:
            self._turn += 1
            group_queues = self._group_queues(group, topic)
            for step in range(len(group_queues)):
                group_queue = group_queues[(self._turn + step) % len(group_queues)]
                progress = self._progress(group_queue, group, now_ms)
                limit = (count - len(found), ANSWER_BYTES_MAX - sum(_weight(f.message) for f in found))
                chosen, unwanted = self._choose(
                    group_queue, progress, group, limit, accepts_tag, one_per_message_group, now_ms
                )
                alive = [f for f in chosen if f.attempt <= group.attempts_max]
                spent = [f for f in chosen if f.attempt > group.attempts_max]
                # In one frame: the cursor passes all of them together, or none.
                rows = np.concatenate(
                    (
                        change_rows(ACT_SETTLE, group_queue, unwanted, 0, 0),
                        _take_rows(ACT_TAKE, group_queue, alive, 0, now_ms + invisible_ms),
                        _take_rows(ACT_CHANGE, group_queue, spent, -1, now_ms + _DEAD_LETTER_LEASE_MS),
                    )
                )
                if len(rows):
                    end = consumers.append(rows, now_ms)
                consumers.settling.update((group_queue, f.offset) for f in spent)
                found.extend(alive)
                dead.extend(spent)
                if len(found) >= count or sum(_weight(f.message) for f in found) >= ANSWER_BYTES_MAX:
                    break
        consumers.wait(end)
        if dead:
            letters = [(f.group_queue, f.offset, f.attempt - 1, f.message) for f in dead]
            bury(self._store, self._topics, group.name, topic.name, letters, now_ms)
        return [self._delivery(f, group, topic, now_ms + invisible_ms) for f in found]

    def has_news(self, topic_name: str, group_name: str) -> bool:
        """True if a queue of the topic holds messages that this group was never given.

        Takes no lock, so that an endpoint may ask for every waiting consumer; it may be stale at once.
        """
        topic = self._store.topics.named(topic_name)
        group = self._store.consumers.state.group(group_name)
        if topic is None or group is None:
            return True  # let the receive itself say what is wrong
        for group_queue in self._group_queues(group, topic):
            progress = self._store.consumers.state.progress(group_queue)
            if progress is None or progress.next_offset < self._store.queues.end(group_queue[1:]):
                return True
        return False

    def _group_queues(self, group: Group, topic: Topic) -> list[GroupQueue]:
        """The queues that a receive looks at: the topic's, and the one with the group's retries of it."""
        group_queues = [(group.id, topic.id, queue_id) for queue_id in range(topic.queue_count)]
        retry = self._store.topics.named(RETRY_PREFIX + group.name)
        if retry is not None and topic.id in retry.origins:
            group_queues.append((group.id, retry.id, retry.origins.index(topic.id)))
        return group_queues

    def received_as(self, topic_name: str, queue_id: int) -> str:
        """The topic through which a group is given the messages of a queue; its own, but for retries."""
        topic = self._store.topics.named(topic_name)
        if topic is None or not 0 <= queue_id < len(topic.origins):
            return topic_name
        origin = self._store.topics.by_id(topic.origins[queue_id])
        return topic_name if origin is None else origin.name

    def next_visible_ms(self, topic_name: str, group_name: str) -> int | None:
        """When a lease of this group in this topic ends next.

        In a FIFO group, a message whose lease has ended may wait behind one that is out: it is that one's
        lease, or its ack, which is worth waiting for.
        """
        group, topic = self.group(group_name), self._topics.require(topic_name)
        now_ms = self._now_ms() if group.is_fifo else None
        with self._store.consumers.lock:
            progresses = [
                self._store.consumers.state.progress(group_queue)
                for group_queue in self._group_queues(group, topic)
            ]
            wakes = [progress.next_visible_ms(now_ms) for progress in progresses if progress is not None]
        return min((wake for wake in wakes if wake is not None), default=None)

    def _progress(self, group_queue: GroupQueue, group: Group, now_ms: int) -> Progress:
        """The group's way through a queue, begun where its settings say, without what has expired."""
        consumers, queue = self._store.consumers, group_queue[1:]
        progress = consumers.state.progress(group_queue)
        if progress is None:
            # What this group sent back is for it, wherever it begins.
            starts_first = group.starts_first or self._holds_retries(queue[0])
            start = 0 if starts_first else self._store.queues.end(queue)
            consumers.append(change_rows(ACT_CURSOR, group_queue, [start], 0, 0), now_ms)
            progress = consumers.state.progress(group_queue)
            assert progress is not None
        end = self._store.queues.end(queue)
        if progress.first_unsettled < min(end, self._store.queues.head(queue)):
            first = self._store.queues.first_live(queue, self._store.log.head)
            consumers.append(change_rows(ACT_SKIP, group_queue, [first], 0, 0), now_ms)
        return progress

    def _holds_retries(self, topic_id: int) -> bool:
        topic = self._store.topics.by_id(topic_id)
        return topic is not None and bool(topic.origins)

    def _choose(
        self,
        group_queue: GroupQueue,
        progress: Progress,
        group: Group,
        at_most: tuple[int, int],
        accepts_tag: TagFilter | None,
        is_one_each: bool,
        now_ms: int,
    ) -> tuple[list[_Found], list[int]]:
        """Messages of one queue that may go out, up to a number and bytes; and offsets of unwanted ones."""
        limit, bytes_left = at_most
        keeps_order = group.is_fifo
        is_retry = self._holds_retries(group_queue[1])
        blocked = self._groups_out(group_queue, progress, now_ms) if keeps_order else _GroupsOut()
        found: list[_Found] = []
        unwanted: list[int] = []
        end = self._store.queues.end(group_queue[1:])
        # In order of their offsets, an earlier one may come last whose lease ended last: look at all of them.
        again = progress.visible_again(now_ms, len(progress.taken) if keeps_order else limit)
        offsets = sorted(again) if keeps_order else again
        fresh = range(progress.next_offset, end)
        for offset, arrival, message in walk(self._store, group_queue[1:], offsets, fresh, limit):
            held = progress.taken.get(offset)
            if (group_queue, offset) in self._store.consumers.settling:
                continue
            if message is None or (held is None and accepts_tag is not None and not accepts_tag(message.tag)):
                unwanted.append(offset)
            elif keeps_order and blocked.holds(message.message_group):
                if held is None:
                    break  # the cursor must not pass it
            else:
                before = progress.attempts(offset) if held else attempts_of(message) if is_retry else 0
                number = held[0] if held else before
                weight = _weight(message) if before < group.attempts_max else len(message.body)
                if weight >= ANSWER_BYTES_MAX > bytes_left:  # must be alone, and is not the first
                    if held is None or keeps_order:  # neither the cursor nor its message group may pass it
                        break
                    continue
                found.append(
                    _Found(group_queue, offset, before + 1, number + 1, progress.resets, arrival, message)
                )
                bytes_left -= weight
                if is_one_each:
                    blocked.names.add(message.message_group)
                if len(found) >= limit or bytes_left <= 0:  # at once, or more would be read in vain
                    break
        return found, unwanted

    def _groups_out(self, group_queue: GroupQueue, progress: Progress, now_ms: int) -> _GroupsOut:
        """Message groups that have a message in some consumer's hands."""
        groups = _GroupsOut()
        for offset, (_, visible_at_ms) in progress.taken.items():
            if visible_at_ms > now_ms:
                row = self._store.queues.read(group_queue[1:], offset, offset + 1)[0]
                if self._store.is_expired(int(row["place"])):
                    continue
                message = self._store.readable(int(row["place"]))
                if message is None:
                    groups.has_unknown = True
                else:
                    groups.names.add(message.message_group)
        return groups

    def _delivery(self, found: _Found, group: Group, topic: Topic, invisible_until_ms: int) -> Delivery:
        _, topic_id, queue_id = found.group_queue
        name = (self._store.topics.by_id(topic_id) or topic).name
        released_at_ms, via, placements = found.arrival
        return Delivery(
            topic=topic.name,
            group=group.name,
            queue_id=queue_id,
            offset=found.offset,
            attempt=found.attempt,
            invisible_until_ms=invisible_until_ms,
            ack_token=encode_ack_token(
                DeliveryName(
                    group.name, name, queue_id, found.offset, found.number, found.resets, found.attempt
                )
            ),
            released_at_ms=released_at_ms,
            via=Via(via),
            rolls=rolls_of(placements),
            message=found.message,
        )


def _weight(message: StoredMessage) -> int:
    """What a message takes of an answer's bytes: never nothing, and all of them if it must be alone."""
    size = len(message.body)
    return ANSWER_BYTES_MAX if size > BODY_BYTES_IN_COMPANY_MAX else size + 1


def _take_rows(
    act: int, group_queue: GroupQueue, found: Sequence[_Found], more: int, visible_at_ms: int
) -> Rows:
    """Rows that put messages into a consumer's hands, `more` deliveries later than found."""
    return change_rows(
        act, group_queue, [f.offset for f in found], [f.number + more for f in found], visible_at_ms
    )
