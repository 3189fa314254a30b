"""What consumer groups must see: at least once, never again after an ack, attempts that rise by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.model import DLQ, Broken, Model, TopicLife
from simulation.retries import RETRY, LetterKey, key_of
from tidemill.broker.consume.ack_tokens import decode_ack_token

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.core.model import Delivery

ATTEMPTS_MAX = 2
TAGGED = "tagged"  # this group takes only messages with tag "a"
GROUPS = ("first", "second", TAGGED)
BACKOFF = {TAGGED: "2s 40s"}  # what a group's send-backs wait, where it has a table of its own

Key = tuple[str, int, int, int]  # group, topic id, queue, offset


def wants(group: str, tag: str) -> bool:
    return group != TAGGED or tag == "a"


@dataclass
class Taken:
    """A message in a consumer's hands."""

    attempt: int
    hidden_until_ms: int | None  # None: in doubt
    doubts: int  # receives cut short so far, when it was handed out
    ack_token: str
    body: bytes
    life_id: int  # of the topic it was received from
    origin: str  # and its name
    is_acked: bool | None = False  # settled; None: in doubt
    is_sent_back: bool = False  # that is how it was settled, if it was
    is_resent: bool = False  # a dead letter that was given to its group once more
    is_untried: bool | None = False  # given back without an attempt; None: in doubt


@dataclass
class Consumers:
    """Every delivery that was seen."""

    model: Model
    taken: dict[Key, Taken] = field(default_factory=dict)
    doubts: dict[tuple[str, int], int] = field(default_factory=dict)  # receives cut short, by group and topic
    subscribed: set[tuple[str, int]] = field(default_factory=set)
    known_groups: set[str] = field(default_factory=set)  # groups whose settings were acknowledged

    def doubt(self, group: str, life: TopicLife) -> None:
        """A receive begins: if it is cut short, messages may have been leased without a consumer."""
        key = (group, life.id)
        self.doubts[key] = self.doubts.get(key, 0) + 1
        self.subscribed.add(key)

    def received(
        self,
        group: str,
        life: TopicLife,
        deliveries: list[Delivery],
        now_ms: int,
        dead: dict[bool, set[LetterKey]] | None = None,
    ) -> None:
        """A receive was answered. `dead`: what was dead at that moment, by `is_resent`; None: as now."""
        self.doubts[group, life.id] -= 1
        doubts = self.doubts[group, life.id]
        for delivery in deliveries:
            source = self.source(life, delivery)
            if source is not life and source.name != RETRY + group:
                raise Broken(f"{group} was given {delivery.message.body!r} of {source.name}")
            if delivery.topic != life.name:
                raise Broken(f"{group} received from {life.name} and was given one of {delivery.topic}")
            key = (group, source.id, delivery.queue_id, delivery.offset)
            body = delivery.message.body
            row = source.rows.get((delivery.queue_id, delivery.offset))
            if row is None or row[0] != body:
                raise Broken(f"{group} was given {body!r} at {key}, the queue holds {row}")
            if not wants(group, delivery.message.tag):
                raise Broken(f"{group} was given {body!r} with tag {delivery.message.tag!r}")
            first = 1 if source is life else key_of(source.name, delivery.message)[2] + 1
            is_resent = source is not life and first == 1
            letter = (group, life.name, body)
            if letter in dead[is_resent] if dead else self.model.is_dead(letter, is_resent=is_resent):
                raise Broken(f"{group} was given {body!r} again, which is among its dead letters")
            self._check_again(key, delivery, doubts, now_ms, first)
            self.taken[key] = Taken(
                delivery.attempt,
                delivery.invisible_until_ms,
                doubts,
                delivery.ack_token,
                body,
                life.id,
                life.name,
                is_resent=is_resent,
            )

    def source(self, life: TopicLife, delivery: Delivery) -> TopicLife:
        """The topic in whose queue a delivery lies: the one received from, or its group's retry topic."""
        name = decode_ack_token(delivery.ack_token)[1]
        return life if name == life.name else self.model.topics[name]

    def _check_again(self, key: Key, delivery: Delivery, doubts: int, now_ms: int, first: int) -> None:
        before = self.taken.get(key)
        low = high = before.attempt + 1 if before else first
        if before:
            low -= before.is_untried is not False
            high += doubts - before.doubts - (before.is_untried is True)
        else:
            high += doubts
        if before and before.is_acked:
            raise Broken(f"{before.body!r} was acknowledged and is delivered again at {key}")
        if before and before.hidden_until_ms is not None and now_ms < before.hidden_until_ms:
            raise Broken(f"{before.body!r} is hidden until {before.hidden_until_ms}, given at {now_ms}")
        if not low <= delivery.attempt <= min(high, ATTEMPTS_MAX):
            raise Broken(f"attempt {delivery.attempt} at {key}, expected {low} to {high}")

    def settled(self, key: Key, *, answer: bool, is_live: bool) -> bool:
        """An ack or a change was answered; returns whether it took effect."""
        held = self.taken[key]
        is_certain = held.doubts == self.doubts[key[0], held.life_id] and is_live
        if not answer and is_certain and not held.is_acked:
            raise Broken(f"the receipt of {held.body!r} at {key} was refused: {held}")
        if answer and held.is_acked:
            raise Broken(f"{held.body!r} at {key} was acknowledged twice")
        return answer

    def in_hand(self) -> list[Key]:
        alive = {life.id for life in self.model.topics.values()}
        return [key for key, held in self.taken.items() if held.is_acked is False and key[1] in alive]

    def check_all_given(self, broker: Broker) -> None:
        """At the end: every subscriber was given every message that is still there."""
        for life in self.model.topics.values():
            if life.name.startswith(DLQ):
                continue
            if life.name.startswith(RETRY):
                self._check_retries_given(broker, life)
                continue
            for queue_id in range(life.queue_count):
                for row in broker.views.read(life.name, queue_id, 0, 1 << 30):
                    for group in GROUPS:
                        if (group, life.id) in self.subscribed and wants(group, row.message.tag):
                            key = (group, life.id, queue_id, row.offset)
                            self.check_given(key, life.name, row.message.body)

    def _check_retries_given(self, broker: Broker, life: TopicLife) -> None:
        group = life.name.removeprefix(RETRY)
        for queue_id in range(life.queue_count):
            for row in broker.views.read(life.name, queue_id, 0, 1 << 30):
                origin = row.message.properties["RETRY_TOPIC"]
                topic = broker.store.topics.named(life.name)
                assert topic is not None
                if broker.store.topics.by_id(topic.origins[queue_id]) is None:
                    continue  # its topic was deleted
                is_resent = key_of(life.name, row.message)[2] == 0
                key = (group, life.id, queue_id, row.offset)
                self.check_retry_given(key, origin, row.message.body, is_resent=is_resent)

    def check_retry_given(self, key: Key, origin: str, body: bytes, *, is_resent: bool) -> None:
        """A message in a group's retry topic was given to it and settled."""
        group, held = key[0], self.taken.get(key)
        is_buried = (group, origin, body) in self.model.given_up
        if held is None and is_resent:
            raise Broken(f"{group} never was given {body!r}, which was resent")
        if not is_buried and (held is None or held.is_acked is False):
            raise Broken(f"{group} never settled {body!r} of its retries: {held}")

    def check_given(self, key: Key, topic: str, body: bytes) -> None:
        """A message was given to a group that subscribed, and settled."""
        group, held = key[0], self.taken.get(key)
        is_buried = (group, topic, body) in self.model.given_up
        if is_buried and held is not None and held.is_acked and not held.is_sent_back:
            raise Broken(f"{body!r} was acknowledged by {group} and is among its dead letters")
        if not is_buried and (held is None or held.is_acked is False):
            raise Broken(f"{group} never settled {body!r} of {topic}: {held}")
