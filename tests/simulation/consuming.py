"""Consuming: receive, acknowledge, put off, and let attempts run out."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.breaking import Broken
from simulation.consumers import ATTEMPTS_MAX, BACKOFF, GROUPS, TAGGED, Key
from simulation.retries import Retry
from simulation.world import World
from tidemill.broker.consume.retries import SendBackAnswer
from tidemill.core.answers import NackResult
from tidemill.core.errors import DiskFullError, UnknownTopicError
from tidemill.core.levels import level_delays_ms
from tidemill.core.model import CancelAnswer


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
            self.world.broker.receiver.set_group(
                group,
                attempts_max=ATTEMPTS_MAX,
                is_fifo=group == "second",
                backoff=BACKOFF.get(group, ""),
            )
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
        sources = [self.world.consumers.source(life, d) for d in deliveries]
        keys = [
            (group, source.id, d.queue_id, d.offset) for source, d in zip(sources, deliveries, strict=True)
        ]
        if count or self.world.random.random() < 0.4:
            self.ack([key for key in keys if count or self.world.random.random() < 0.8])
        return len(deliveries)

    def ack(self, keys: list[Key]) -> None:
        held = [self.world.consumers.taken[key] for key in keys]
        before = [taken.is_acked for taken in held]
        for taken in held:
            taken.is_acked = None
        answers = self.world.broker.ack([taken.ack_token for taken in held])
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
        luck = self.world.random.random()
        if luck < 0.4:
            self.ack([key])
            return
        taken = self.world.consumers.taken[key]
        if luck < 0.8 and not taken.is_resent:
            self.send_back(key)
            return
        span = self.world.random.choice((0, 1_000, 30_000))
        gives_back, was_untried = self.world.random.random() < 0.5, taken.is_untried
        taken.hidden_until_ms = None
        taken.is_untried = was_untried if was_untried or not gives_back else None
        (answer,) = self.world.broker.change_invisibility([taken.ack_token], span, is_untried=gives_back)
        took_effect = self.world.consumers.settled(key, answer=answer, is_live=self._is_live(key))
        taken.is_untried = True if took_effect and gives_back else was_untried
        if took_effect:
            taken.hidden_until_ms = self.world.now_ms + span

    def _is_buried(self, key: Key) -> bool:
        taken = self.world.consumers.taken[key]
        return self.world.model.is_dead((key[0], taken.origin, taken.body), is_resent=taken.is_resent)

    def send_back(self, key: Key) -> None:
        """Give a delivery back, on a level or at once to the dead letters."""
        group, taken = key[0], self.world.consumers.taken[key]
        level = self.world.random.choice((0, 0, 1, 2, 3, -1))
        is_dead = level < 0 or taken.attempt >= ATTEMPTS_MAX
        stays = group == "second" and not is_dead
        due_ms = self.world.now_ms + (0 if is_dead else self._wait_ms(group, level, taken.attempt))
        retry = Retry(taken, taken.origin, due_ms, is_dead)
        name = (group, taken.body, taken.attempt)
        known = self.world.model.retries.known
        before, was_hidden, earlier = taken.is_acked, taken.hidden_until_ms, known.get(name)
        if stays:
            taken.hidden_until_ms = None
        else:
            taken.is_acked, taken.is_sent_back, known[name] = None, True, retry
        try:
            (sent,) = self.world.broker.send_back([taken.ack_token], level)
        except DiskFullError:
            if not self.world.is_full:
                raise
            sent = NackResult(SendBackAnswer.INVALID)
        took_effect = sent.answer is not SendBackAnswer.INVALID
        taken.is_acked = before
        if not self.world.is_full:
            self.world.consumers.settled(key, answer=took_effect, is_live=self._is_live(key))
        if not took_effect:
            taken.hidden_until_ms = was_hidden
            if not stays:
                taken.is_sent_back = False
                known.pop(name)
                if earlier is not None:
                    known[name] = earlier
        elif stays:
            taken.hidden_until_ms = due_ms
        else:
            taken.is_acked, retry.is_stored = True, True
            if (sent.answer is SendBackAnswer.DEAD) != is_dead:
                raise Broken(f"{retry} was answered with {sent}")
            self.world.look()
            self._cancel_some(retry, sent)

    def _wait_ms(self, group: str, level: int, attempt: int) -> int:
        if level == 0 and group in BACKOFF:
            table = level_delays_ms(BACKOFF[group])
            return table[min(attempt, len(table)) - 1]
        table = self.world.broker.settings.level_delays_ms
        return table[min(level or 2 + attempt, len(table)) - 1]

    def resend_letters(self) -> None:
        """Give a group's dead letters to it once more."""
        model = self.world.model
        groups = sorted({group for group, _, _ in model.buried})
        if not groups:
            return
        group = self.world.random.choice(groups)
        model.resends.add(group)
        before = model.resent_count
        try:
            count = self.world.broker.dead_letters.resend(group)
        except UnknownTopicError:
            return  # their topics are gone
        except DiskFullError:
            self.world.refused([])
            return
        self.world.look()
        if model.resent_count - before != count:
            raise Broken(f"{count} letters were resent, {model.resent_count - before} came")

    def _cancel_some(self, retry: Retry, sent: NackResult) -> None:
        if sent.handle is None or not retry.is_pending or self.world.random.random() > 0.15:
            return
        retry.is_cancelled = None
        (answer,) = self.world.broker.cancel([sent.handle])
        if answer is not CancelAnswer.CANCELLED:
            raise Broken(f"cancelling {retry} says {answer}")
        retry.is_cancelled = True
