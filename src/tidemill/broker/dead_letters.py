"""Dead letters: messages a group has given up on, kept in `%DLQ%group` until somebody looks.

Owns what a dead letter looks like and the verb that sends one there before its attempts are used up. The
frame that stores it also settles the delivery it takes the place of, so it is in exactly one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemill.broker.admission import DEAD_LETTER_PREFIX
from tidemill.broker.receipts import decode_receipt, lane_held
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
        delivery = decode_receipt(receipt)
        consumers = self._store.consumers
        # The writer's lock before the consumers', as everywhere.
        with self._store.writer.lock, consumers.lock:
            lane = lane_held(delivery, consumers.state, self._store.indexes.topics)
            if lane is None:
                return False
            _, topic_id, queue_id = lane
            offset = delivery.offset
            row = self._store.queues.read((topic_id, queue_id), offset, offset + 1)[0]
            if self._store.is_expired(int(row["place"])):
                return False
            # Made only now: a receipt that settles nothing leaves no topic behind.
            target = self._topics.find_or_create(DEAD_LETTER_PREFIX + delivery.group, is_internal=True)
            letter = dead_letter(
                self._store.message(int(row["place"])),
                delivery.topic,
                target.id,
                self._topics.choose_queue(target, ""),
            )
            settlement = Settlement(delivery.group, topic_id, queue_id, offset)
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
