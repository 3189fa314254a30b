"""What happens to a simulated broker in one life: acts chosen by chance, each reported to the model.

An act first says what it is about to do (so that a crash leaves the right doubts), then does it, then
compares the answer with what the model knows.
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.changing import Changing
from simulation.consuming import Consuming
from simulation.holding import Holding
from simulation.operating import Operating
from simulation.sending import Sending
from simulation.world import World


class Workload:
    """All acts of one run."""

    def __init__(self, world: World, change_weight: int = 1, crash_chance: float = 0.0) -> None:
        self.world = world
        self.sending, self.consuming = Sending(world), Consuming(world)
        self.holding = Holding(world)
        self.changing = Changing(world, crash_chance)
        sending, changing, operating = self.sending, self.changing, Operating(world)
        self._acts: list[tuple[int, Callable[[], object]]] = [
            (14, sending.send_some),
            (5, sending.send_table),
            (4, sending.send_again),
            (6, sending.send_once),
            (6 * change_weight, changing.cancel_handles),
            (2 * change_weight, changing.cancel_key),
            (1 * change_weight, changing.cancel_range),
            (6 * change_weight, changing.reschedule_handles),
            (2 * change_weight, changing.reschedule_key),
            (2 * change_weight, changing.reschedule_range),
            (12, self.consuming.receive),
            (10, self.consuming.settle),
            (6, self.consuming.resend_letters),
            (6, operating.change_topic),
            (1, operating.delete_topic),
            (2, operating.open_half),
            (2, operating.end_half),
            (2, operating.checkpoint),
            (6, self.holding.hold_or_resume),
            (20, operating.pass_time),
        ]

    def act(self) -> None:
        """Do one thing and look at what it led to."""
        self.world.model.turn += 1
        if not self.changing.retry_lost():
            weights = [weight for weight, _ in self._acts]
            self.world.random.choices([act for _, act in self._acts], weights)[0]()
        self.world.look()
