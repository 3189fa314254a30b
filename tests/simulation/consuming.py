"""Consuming: receive, acknowledge, put off, and let attempts run out."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.consumers import ATTEMPTS_MAX, GROUPS, TAGGED, Key
from simulation.world import World


@dataclass
class Consuming:
    """The acts of consumers."""

    world: World

    def receive(self, group: str | None = None, topic: str | None = None, count: int = 0) -> int:
        """Take messages and perhaps acknowledge them; returns how many came."""
        topic = topic or self.world.some_topic()
        if topic is None:
            return 0
        group = group or self.world.random.choice(GROUPS)
        life = self.world.model.topics[topic]
        if group not in self.world.consumers.known_groups:
            self.world.broker.receiver.set_group(group, attempts_max=ATTEMPTS_MAX, is_fifo=group == "second")
            self.world.consumers.known_groups.add(group)
        self.world.consumers.doubt(group, life)
        accepts = (lambda tag: tag == "a") if group == TAGGED else None
        deliveries = self.world.broker.receive(
            topic,
            group,
            count=count or self.world.random.choice((1, 4, 30)),
            invisible_ms=self.world.random.choice((100, 500, 5_000, 60_000)),
            accepts_tag=accepts,
        )
        self.world.look()
        self.world.consumers.received(group, life, deliveries, self.world.now_ms)
        keys = [(group, life.id, d.queue_id, d.offset) for d in deliveries]
        if count or self.world.random.random() < 0.4:
            self.ack([key for key in keys if count or self.world.random.random() < 0.8])
        return len(deliveries)

    def ack(self, keys: list[Key]) -> None:
        held = [self.world.consumers.taken[key] for key in keys]
        before = [taken.is_acked for taken in held]
        for taken in held:
            taken.is_acked = None
        answers = self.world.broker.ack([taken.receipt for taken in held])
        for key, taken, answer, was in zip(keys, held, answers, before, strict=True):
            taken.is_acked = was
            if self.world.consumers.settled(key, answer=answer, is_live=self._is_live(key)):
                taken.is_acked = True

    def _is_live(self, key: Key) -> bool:
        life = next(life for life in self.world.model.topics.values() if life.id == key[1])
        return bool(self.world.broker.views.read(life.name, key[2], key[3], 1))

    def settle(self) -> None:
        """Acknowledge late, or put off, something that was taken earlier."""
        keys = self.world.consumers.in_hand()
        keys = [key for key in keys if not self._is_buried(key)][-20:]
        if not keys:
            return
        key = self.world.random.choice(keys)
        if self.world.random.random() < 0.6:
            self.ack([key])
            return
        taken = self.world.consumers.taken[key]
        span = self.world.random.choice((0, 1_000, 30_000))
        taken.hidden_until_ms = None
        (answer,) = self.world.broker.change_invisibility([taken.receipt], span)
        if self.world.consumers.settled(key, answer=answer, is_live=self._is_live(key)):
            taken.hidden_until_ms = self.world.now_ms + span

    def _is_buried(self, key: Key) -> bool:
        taken = self.world.consumers.taken[key]
        name = next(life.name for life in self.world.model.topics.values() if life.id == key[1])
        return (key[0], name, taken.body) in self.world.model.buried
