"""What the users of a simulated broker share: its clock, its dice, the model, and the broker of this life."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from simulation.consumers import Consumers
from simulation.model import DLQ, Broken, Message, Model
from simulation.retries import RETRY

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.testing import ManualClock

TOPICS = ("alpha", "beta", "gamma")
KEYS = ("k1", "k2", "k3", "k4")
SPANS_MS = (-5_000, 0, 1, 400, 3_000, 6_000, 15_000, 60_000, 200_000, 400_000, 1_500_000)


@dataclass
class World:
    """`broker` is replaced with every life."""

    random: Random
    clock: ManualClock
    model: Model
    consumers: Consumers
    broker: Broker
    look_every_ms: int  # so short that nothing can expire between two looks
    is_full: bool = False  # the disk has no space: sends may be refused
    made: int = 0
    latest_ms: int = 0  # the latest the clock has shown before it was set

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def look(self, *, is_thorough: bool = False) -> None:
        """See what the queues hold, and that it may be there."""
        self.model.poll(self.broker, is_thorough=is_thorough)

    def leap(self, span_ms: int) -> None:
        """An operator sets the clock."""
        self.latest_ms = max(self.latest_ms, self.now_ms)
        self.clock.leap_ms(span_ms)

    def advance(self, span_ms: int) -> None:
        """Let time pass; whatever falls due must be in its topic then."""
        until_ms = self.now_ms + span_ms
        is_watchful = self.random.random() < 0.2
        while True:
            stop_ms = min(until_ms, self.now_ms + self.look_every_ms)
            if is_watchful:  # look once more right before the next is due: it may not be there yet
                dues = [m.due_ms - 1 for m in self.model.pending() if m.due_ms - 1 > self.now_ms]
                stop_ms = min((stop_ms, *dues))
            self.broker.advance_to(stop_ms)
            self.broker.run_due()
            self.look()
            self.model.check_none_late(self.now_ms)
            if self.now_ms >= until_ms:
                return

    def new_body(self) -> bytes:
        self.made += 1
        return f"m{self.made}-{'x' * self.random.choice((0, 10, 100, 1000))}".encode()

    def some_topic(self) -> str | None:
        names = [name for name in self.model.topics if not name.startswith((DLQ, RETRY))]
        return self.random.choice(names) if names else None

    def refused(self, messages: list[Message]) -> None:
        """The broker said that the disk is full: then it must be, and nothing was stored."""
        if not self.is_full:
            raise Broken("a request was refused for lack of space, and there is space")
        self.model.sync_topics(self.broker)
        for message in messages:
            message.is_stored = False
