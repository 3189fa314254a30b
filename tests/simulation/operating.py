"""Topics, transactions, checkpoints, and the passing of time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation.model import Broken, Message, due_set
from simulation.world import TOPICS, World
from tidemill.core.errors import DiskFullError, TopicExistsError
from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage
from tidemill.store.formats.new_messages import new_messages


@dataclass
class Operating:
    """The acts of operators, of transactional producers, and of the clock."""

    world: World

    def change_topic(self) -> None:
        topic = self.world.some_topic()
        if topic is None or self.world.random.random() < 0.2:
            try:
                self.world.broker.topics.create(
                    self.world.random.choice(TOPICS), queue_count=self.world.random.choice((1, 2, 3))
                )
            except TopicExistsError:
                return
            except DiskFullError:
                self.world.refused([])
        elif self.world.random.random() < 0.5:
            self.world.broker.topics.change(topic, is_paused=self.world.random.random() < 0.4)
        else:
            self.world.broker.topics.change(topic, release_rate_max=self.world.random.choice((0, 0, 2, 50)))

    def delete_topic(self) -> None:
        topic = self.world.some_topic()
        if topic is None or self.world.random.random() < 0.4:
            return
        self.world.model.deleting = topic
        waiting = len(self.world.model.pending(topic))
        cancelled = self.world.broker.topics.delete(topic, is_forced=True)
        if cancelled != waiting:
            raise Broken(f"deleting {topic} cancelled {cancelled}, {waiting} waited")

    def open_half(self) -> None:
        topic = self.world.some_topic()
        if topic is None:
            return
        life = self.world.model.topics[topic]
        body = self.world.new_body()
        message = StoredMessage(
            id=f"half-{self.world.made}",
            topic_id=life.id,
            queue_id=0,
            type=MessageType.TRANSACTION,
            level=0,
            flags=0,
            tag="",
            keys=(),
            message_group="",
            born_at_ms=self.world.now_ms,
            stored_at_ms=self.world.now_ms,
            deliver_at_ms=NO_TIME_MS,
            properties={},
            body=body,
        )
        self.world.model.halves[body] = Message(
            body, life, message.id, (), "", "", set(), self.world.model.turn, 0
        )
        try:
            self.world.broker.store.finish(
                self.world.broker.store.writer.put_halves([message], self.world.now_ms)
            )
        except DiskFullError:
            if not self.world.is_full:
                raise
            del self.world.model.halves[body]
            return
        self.world.model.halves[body].is_stored = True

    def end_half(self) -> None:
        store = self.world.broker.store
        if not self.world.model.halves:
            return
        body = self.world.random.choice(list(self.world.model.halves))
        half = next(h for h in store.open_transactions.values() if store.message(h.place).body == body)
        message = None
        if self.world.random.random() < 0.6:
            due = self.world.random.choice((NO_TIME_MS, self.world.now_ms + 20_000))
            message = _committed(store.message(half.place), due, self.world.now_ms)
            known = self.world.model.halves[body]
            self.world.model.messages[body] = Message(
                body, known.topic, message.id, (), "", "", due_set(due), self.world.model.turn, 0
            )
        self.world.model.ending = (body, message is not None)
        new = None if message is None else new_messages([message])
        store.finish(store.writer.end_half(half, new, self.world.now_ms))
        self.world.model.ending = None
        del self.world.model.halves[body]
        if message is not None:
            self.world.model.messages[body].is_stored = True

    def checkpoint(self) -> None:
        self.world.broker.store.checkpoint()

    def pass_time(self) -> None:
        span = self.world.random.choice((0, 1, 50, 1_000, 4_000, 9_000, 30_000, 61_000))
        luck = self.world.random.random()
        if luck < 0.12:
            self.world.leap(self.world.random.choice((-300_000, -20_000, 20_000, 200_000)))
        elif luck < 0.3:
            self.world.clock.advance(span)
            self.world.broker.run_due()
            return
        self.world.advance(span)


def _committed(half: StoredMessage, due_ms: int, now_ms: int) -> StoredMessage:
    return replace(half, deliver_at_ms=due_ms, stored_at_ms=now_ms, queue_id=0)
