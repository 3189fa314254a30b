"""The broker-wide switches: what is held, as the model knows it, and the act that changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.breaking import Broken
from tidemill.core.errors import DiskFullError
from tidemill.core.holds import Held
from tidemill.store.formats.entry_format import FLAG_LEVEL, FLAG_NEAR

if TYPE_CHECKING:
    from simulation.world import World
    from tidemill.broker.broker import Broker


@dataclass
class HeldModel:
    """What is held. A change that a crash cut short is in doubt until the next opening shows it."""

    held: dict[Held, bool] = field(default_factory=lambda: dict.fromkeys(Held, False))
    changing: Held | None = None

    @property
    def releases(self) -> bool:
        return self.held[Held.RELEASES]

    @property
    def absorbing(self) -> bool:
        return self.held[Held.ABSORBING]

    def check(self, broker: Broker) -> None:
        """The broker holds what the model says; what was in doubt is settled by it."""
        for what in Held:
            is_held = broker.switches.state.since_ms(what) is not None
            if is_held != self.held[what] and what is not self.changing:
                raise Broken(f"{what}: held is {is_held} and should be {self.held[what]}")
            self.held[what] = is_held
        self.changing = None
        if self.absorbing:
            _check_nothing_absorbed(broker)


def _check_nothing_absorbed(broker: Broker) -> None:
    """No far message that came after the hold is among what the shards have gone through."""
    below, end = broker.switches.state.absorb_below_seq, max(broker._timer.absorbed_ends)
    seqs = [p.seq for p in broker.views.pending(limit=1 << 30) if below <= p.seq < end]
    far = [seq for seq in seqs if not broker.store.entry(seq)["flags"] & (FLAG_NEAR | FLAG_LEVEL)]
    if far:
        raise Broken(f"{far} were absorbed, up to {end}, although that is held from {below} on")


@dataclass
class Holding:
    """The act of an operator who holds and resumes."""

    world: World

    def hold_or_resume(self) -> None:
        random, model = self.world.random, self.world.model.holds
        held = [what for what in Held if model.held[what]]
        if held and random.random() < 0.85:
            self._change(random.choice(held), False)
        elif random.random() < 0.4:
            self._change(random.choice(list(Held)), True)

    def resume_all(self) -> None:
        for what in Held:
            self._change(what, False)

    def _change(self, what: Held, is_held: bool) -> None:
        switches, model = self.world.broker.switches, self.world.model.holds
        model.changing = what
        try:
            (switches.hold if is_held else switches.resume)(what)
        except DiskFullError:
            if not self.world.is_full:
                raise
        else:
            model.held[what], model.changing = is_held, None
        model.check(self.world.broker)
