"""Dead letters: messages a group has given up on, kept in `%DLQ%group` until somebody looks.

Owns what a dead letter looks like and the verb that sends one there before its attempts are used up. The
frame that stores it also settles the delivery it takes the place of, so it is in exactly one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemill.broker.admission import DEAD_LETTER_PREFIX
from tidemill.broker.receipts import decode_receipt
from tidemill.broker.topic_admin import TopicAdmin
from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage
from tidemill.store.frames import Settlement
from tidemill.store.message_store import MessageStore


class DeadLetters:
    """The forward verb. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._topics = topics
        self._now_ms = now_ms

    def forward(self, receipt: str) -> bool:
        """Move one delivery to its group's dead letters; False if the receipt is no longer the valid one."""
        group_name, topic_name, queue_id, offset, attempt = decode_receipt(receipt)
        target = self._topics.find_or_create(DEAD_LETTER_PREFIX + group_name, is_internal=True)
        topic = self._store.indexes.topics.named(topic_name)
        consumers = self._store.consumers
        # The writer's lock before the consumers', as everywhere.
        with self._store.writer.lock, consumers.lock:
            group = consumers.state.group(group_name)
            if group is None or topic is None:
                return False
            progress = consumers.state.progress((group.id, topic.id, queue_id))
            held = progress.taken.get(offset) if progress is not None else None
            if held is None or held[0] != attempt:
                return False
            row = self._store.queues.read((topic.id, queue_id), offset, offset + 1)[0]
            if self._store.is_expired(int(row["place"])):
                return False
            letter = dead_letter(
                self._store.message(int(row["place"])),
                topic.name,
                target.id,
                self._topics.choose_queue(target, ""),
            )
            settlement = Settlement(group_name, topic.id, queue_id, offset)
            appended = self._store.writer.send_back([letter], [settlement], self._now_ms())
        self._store.writer.finish(appended)
        return True


def dead_letter(
    message: StoredMessage, topic_name: str, target_topic_id: int, queue_id: int
) -> StoredMessage:
    """The message as it lies among the dead letters: untimed, with where it came from."""
    return replace(
        message,
        topic_id=target_topic_id,
        queue_id=queue_id,
        type=MessageType.NORMAL,
        level=0,
        flags=0,
        deliver_at_ms=NO_TIME_MS,
        properties={
            **message.properties,
            "DLQ_ORIGIN_TOPIC": topic_name,
            "DLQ_ORIGIN_MESSAGE_ID": message.id,
        },
    )
