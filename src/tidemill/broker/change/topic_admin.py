"""Topics as an operator sees them: create, delete, pause, resume, limit. Each is one frame in the log."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

from tidemill.broker.send.admission import RETRY_PREFIX, check_topic_name
from tidemill.core.arguments import require_kind, require_whole
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import RequestError, TopicExistsError, TopicInUseError, UnknownTopicError
from tidemill.core.limits import QUEUES_PER_TOPIC_MAX, RELEASE_RATE_MAX, RETRY_ORIGINS_MAX
from tidemill.core.model import TopicType
from tidemill.store.commit_log import CommitLog
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic


class TopicAdmin:
    """Changes the topic table. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._now_ms = now_ms
        self._wake = wake
        self._turns: dict[int, int] = {}

    def create(
        self,
        name: str,
        topic_type: TopicType = TopicType.MIXED,
        queue_count: int | None = None,
    ) -> Topic:
        """Make a topic; `TopicExistsError` if there is one of that name with other properties."""
        check_topic_name(name)
        queues = self._settings.queues_per_topic if queue_count is None else queue_count
        require_whole("the number of queues", queues, 1, QUEUES_PER_TOPIC_MAX)
        topic_type = _type_of(topic_type)
        with self._store.write() as tx:
            known = tx.topics.named(name)
            if known is not None:
                if known.type is topic_type and queue_count in (None, known.queue_count):
                    return known
                raise TopicExistsError(
                    f"topic {name!r} exists with type {known.type.value} and {known.queue_count} queues, "
                    "which cannot be changed; use another name, or delete it first"
                )
            topic = Topic(tx.topics.next_topic_id, name, topic_type, queues)
            appended = tx.change_topic(topic, self._now_ms())
        self._store.finish(appended)
        return topic

    def require(self, name: str) -> Topic:
        topic = self._store.topics.named(name)
        if topic is None:
            raise UnknownTopicError(
                f"topic {name!r} does not exist; create it with `tidemill topics create {name}`"
            )
        return topic

    def existing(self, name: str) -> Topic:
        """The topic, for a verb that a new one would not serve: to change, delete, look or cancel."""
        topic = self._store.topics.named(name)
        if topic is None:
            raise UnknownTopicError(
                f"topic {name!r} does not exist; `tidemill topics list` shows those that do"
            )
        return topic

    def find_or_create(self, name: str, *, is_internal: bool = False) -> Topic:
        """The topic, made as type mixed if it is missing."""
        topic = self._store.topics.named(name)
        if topic is None:
            with self._store.write() as tx:
                topic = self.ensure(tx, name, is_internal=is_internal)
            self._store.finish_written()
        return topic

    def ensure(self, tx: CommitLog, name: str, *, is_internal: bool = False) -> Topic:
        """As `find_or_create`, for a caller that finishes the topic's frame with what it appends itself."""
        topic = tx.topics.named(name)
        if topic is None:
            check_topic_name(name, is_internal=is_internal)
            topic = self.next_topic(tx.topics.next_topic_id, name)
            tx.change_topic(topic, self._now_ms())
        return topic

    def next_topic(self, topic_id: int, name: str) -> Topic:
        """The topic that `ensure` makes where it is missing."""
        return Topic(topic_id, name, TopicType.MIXED, self._settings.queues_per_topic)

    def retry_queue(self, group_name: str, origin: Topic) -> tuple[Topic, int]:
        """Where a group's retries of a topic's messages wait: each topic has a queue of its own."""
        name = RETRY_PREFIX + group_name
        with self._store.write() as tx:
            topic = tx.topics.named(name)
            if topic is not None and origin.id in topic.origins:
                return topic, topic.origins.index(origin.id)
            if topic is None:
                check_topic_name(name, is_internal=True)
                next_id = tx.topics.next_topic_id
                topic = Topic(next_id, name, TopicType.MIXED, 1, origins=(origin.id,))
            else:
                origins = (*topic.origins, origin.id)
                if len(origins) > RETRY_ORIGINS_MAX:
                    raise RequestError(f"group {group_name!r} retries messages of too many topics")
                topic = replace(topic, queue_count=len(origins), origins=origins)
            appended = tx.change_topic(topic, self._now_ms())
        self._store.finish(appended)
        return topic, topic.queue_count - 1

    def change(
        self, name: str, *, is_paused: bool | None = None, release_rate_max: int | None = None
    ) -> Topic:
        """Pause, resume or limit a topic's releases."""
        if release_rate_max is not None:
            require_whole("the release rate (0: no limit)", release_rate_max, 0, RELEASE_RATE_MAX)
        if is_paused is not None:
            require_kind("paused", is_paused, bool, "True or False")
        with self._store.write() as tx:
            topic = self.existing(name)
            topic = replace(
                topic,
                is_paused=topic.is_paused if is_paused is None else is_paused,
                release_rate_max=topic.release_rate_max if release_rate_max is None else release_rate_max,
            )
            appended = tx.change_topic(topic, self._now_ms())
        self._store.finish(appended)
        self._wake()
        return topic

    def delete(self, name: str, *, is_forced: bool = False) -> int:
        """Delete a topic; returns how many waiting messages were cancelled with it (only when forced)."""
        with self._store.write() as tx:
            topic = self.existing(name)
            waiting = tx.due_counts.pending(topic.id)
            if waiting and not is_forced:
                raise TopicInUseError(
                    f"{waiting} messages wait for topic {name!r}; cancel them or delete with --force"
                )
            appended = tx.change_topic(
                topic, self._now_ms(), is_deleted=True, cancel_below_seq=tx.ledger.next_seq
            )
        self._store.finish(appended)
        with self._store.consumers.lock:
            self._store.consumers.state.forget_topic(topic.id)
        return waiting

    def choose_queue(self, topic: Topic, message_group: str) -> int:
        """The queue a message goes to: by its group, else in turn."""
        if message_group:
            return zlib.crc32(message_group.encode()) % topic.queue_count
        turn = self._turns.get(topic.id, 0)
        self._turns[topic.id] = turn + 1
        return turn % topic.queue_count

    def first_turn(self, topic: Topic, count: int) -> int:
        """Where a batch of `count` messages begins its round through the queues."""
        turn = self._turns.get(topic.id, 0)
        self._turns[topic.id] = turn + count
        return turn % topic.queue_count


def _type_of(given: TopicType | str) -> TopicType:
    try:
        return TopicType(given)
    except ValueError:
        names = ", ".join(kind.value for kind in TopicType)
        raise RequestError(f"topic type {given!r} is unknown; use one of {names}") from None
