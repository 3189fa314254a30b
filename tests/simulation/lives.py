"""One seed, one run: a broker that lives, dies and is opened again, several times, with users at work.

Every life is opened on the disk that the last one left: after a kill (bytes kept), a power cut (what was not
synced is lost or torn), a failed sync, or an orderly end. Between two lives the operator may change tick,
shards and timer store, or delete what may be. At the end time passes until everything is due, and all must
be there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from unittest.mock import patch

from simulation.consumers import GROUPS, Consumers
from simulation.model import DLQ, Broken, Model
from simulation.retries import RETRY
from simulation.shape import Shape
from simulation.workload import Workload
from simulation.world import World
from tidemill.broker.broker import Broker
from tidemill.core.errors import BrokerClosedError, SyncFailedError
from tidemill.store.damage import Derived
from tidemill.store.formats import framing
from tidemill.testing import FaultPlan, FaultyDisk, ManualClock, SimulatedCrash

START_MS = 1_800_000_000_000
_LEASE_MS = 61_000  # longer than any lease
_FARTHEST_MS = 8_000_000  # no act makes a message due later than this from now


class Run:
    """The state of one run between its lives."""

    crash_chance = 0.05  # in the middle of a cancel or reschedule, and again before its answer is read
    may_be_damaged = False

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.directory = directory / "data"
        self._scratch = directory / "scratch"
        self.shape = Shape(self.random)
        self.disk = FaultyDisk(seed=seed)
        self.clock = ManualClock(START_MS)
        self.model = Model()
        self.consumers = Consumers(self.model)
        self.events: Counter[str] = Counter()  # what this run has met
        self._workload: Workload | None = None
        self._checks = 0

    @property
    def workload(self) -> Workload:
        assert self._workload is not None
        return self._workload

    # -- a life -----------------------------------------------------------------------------------

    def live(self) -> None:
        """One life: open, work, and some end."""
        plan = self._plan()
        is_open = False
        try:
            if self.random.random() < 0.25:
                self.disk.arm(plan)  # it may not even survive its opening
            broker = self.open()
            is_open = True
            self.disk.arm(plan)
            self._work(self.random.randrange(5, 60))
            self.disk.arm(FaultPlan())
            self.check()
            if self.random.random() < 0.3:
                self.close(broker)
            self._crash(0.5)
        except SimulatedCrash as crash:
            self.events[str(crash).split(":")[0].split(" operation")[0]] += 1
            self._crash(0.6)
        except SyncFailedError:
            self.events["failed sync"] += 1
            if is_open:
                self._require_silence()
            self._crash(0.2)
        self._between_lives()

    def _plan(self) -> FaultPlan:
        luck = self.random.random()
        if luck < 0.1:
            return FaultPlan()
        if luck < 0.25 and self.shape.is_sync:
            return FaultPlan(fail_sync_at=self.random.randrange(1, 60))
        counts_writes = self.random.random() < 0.4
        longest = self.random.choice((10, 100, 500)) * (4 if counts_writes else 1)
        return FaultPlan(
            crash_at=self.random.randrange(1, longest),
            crash_after=self.random.random() < 0.5,
            count_writes=counts_writes,
        )

    def _crash(self, power_cut_chance: float) -> None:
        # Answers of an asynchronous broker survive a kill, not a power cut: that one may lose them.
        has_power_cut = self.shape.is_sync and self.random.random() < power_cut_chance
        self.events["power cut" if has_power_cut else "kill"] += 1
        self.disk = self.disk.crash(power_cut=has_power_cut)
        self.disk.capacity_bytes = None

    def open(self) -> Broker:
        """Open the broker: whatever was in doubt is now one way or the other."""
        broker = self.shape.open(self.directory, self.clock, self.disk)
        if self._workload is None:
            look_every_ms = min(self.shape.retention_ms // 3, 600_000)
            world = World(self.random, self.clock, self.model, self.consumers, broker, look_every_ms)
            self._workload = Workload(world, self.shape.change_weight, self.crash_chance)
        world = self._workload.world
        world.broker, world.is_full = broker, False
        self.model.turn += 1
        self.model.holds.check(broker)
        world.look(is_thorough=True)
        self.model.check_pending(broker)
        self.model.check_halves(broker)
        return broker

    def _work(self, count: int) -> None:
        world = self.workload.world
        full_from = self.random.randrange(count) if self.random.random() < 0.25 else -1
        full_until = full_from + self.random.randrange(2, 12)
        for turn in range(count):
            if turn == full_from:
                free_bytes = self.random.choice((0, 5_000, 50_000))
                self.disk.capacity_bytes = self.disk.allocated_bytes(self.directory) + free_bytes
                world.is_full = True
                self.events["full disk"] += 1
            if turn == full_until:
                self.disk.capacity_bytes = None
                world.is_full = False
            self.workload.act()
            if self.random.random() < 0.05:
                self.check()

    def check(self) -> None:
        """The broker's own check finds nothing, and it lists as pending what the model does."""
        broker = self.workload.world.broker
        self._checks += 1
        scratch = self._scratch / str(self._checks)
        findings = broker.check(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        if findings:
            raise Broken(f"check found: {findings}")
        repaired = broker.store.repairs.counts()[Derived.TIMER]
        if not self.may_be_damaged and (broker.releaser.sweeper.swept_count or repaired):
            raise Broken(f"{broker.releaser.sweeper.swept_count} were swept, {repaired} shards built again")
        self.model.check_pending(broker)
        self.model.check_halves(broker)
        self.model.holds.check(broker)

    def close(self, broker: Broker) -> None:
        report = broker.close()
        pending = len(self.model.pending()) + len(self.model.retries.pending())
        if report.pending != pending:
            raise Broken(f"{report.pending} were pending at the end, not {pending}")

    def _require_silence(self) -> None:
        """A sync of the log failed, so the disk's state is unknown: nothing may be acknowledged any more."""
        # The log itself: when another file's sync fails (the head record), the broker's loop ends the broker.
        failed = self.disk.trace[-1]
        if self.workload.world.is_full or " sync log/" not in failed or ".log" not in failed:
            return
        try:
            if not self.workload.sending.send_some():
                return
        except (SyncFailedError, BrokerClosedError):
            return
        raise Broken("a send was acknowledged after a failed sync")

    def _between_lives(self) -> None:
        """What an operator may do while the broker is down."""
        luck = self.random.random()
        if luck < 0.1:
            self.shape.change()
        elif luck < 0.2:
            self.delete("timer")
        elif luck < 0.3:
            self.delete("index")
        if self.random.random() < 0.3:
            self.clock.advance(self.random.choice((100, 5_000, 60_000)))

    def delete(self, name: str) -> None:
        if self.disk.exists(self.directory / name):
            self.disk.remove_tree(self.directory / name)
            self.disk.sync_dir(self.directory)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """The last life: everything is let go, falls due, is consumed, and is counted."""
        broker = self.open()
        world = self.workload.world
        self.workload.holding.resume_all()
        for name in list(self.model.topics):
            broker.topics.change(name, is_paused=False, release_rate_max=0)
        world.look()
        # A lease from before the clock was set back ends as late as it was given to end.
        world.advance(max(0, world.latest_ms - world.now_ms))
        self._drain()
        while pending := [*self.model.pending(), *self.model.retries.pending()]:
            ahead_ms = min(m.due_ms for m in pending) - self.clock.now_ms()
            if ahead_ms > _FARTHEST_MS:
                raise Broken(f"something is due in {ahead_ms} ms")
            world.advance(max(ahead_ms, 0) + 1_000)
        self._drain()
        self.check()
        self.consumers.check_all_given(broker)
        self.close(broker)
        self.events["head cut"] += self.model.has_cut
        self.events["dead letter"] += len(self.model.given_up)
        self.events["resent"] += self.model.resent_count
        self.events["message"] += len(self.model.messages)
        self.events["sent back"] += len(self.model.retries.known)
        self.events["tick full"] += self.workload.sending.crowded
        self.events["jitter sent again"] += self.workload.sending.repeats_with_jitter
        self.events["change asked again"] += self.workload.changing.retried

    def _drain(self) -> None:
        """Consume until twice in a row, a lease apart, nothing comes."""
        quiet = 0
        while quiet < 2:
            came = 0
            for topic in [name for name in self.model.topics if not name.startswith((DLQ, RETRY))]:
                for group in GROUPS:
                    came += self.workload.consuming.receive(group, topic, 100)
            quiet = 0 if came else quiet + 1
            self.workload.world.advance(_LEASE_MS)


def run(seed: int, directory: Path) -> Run:
    """Run one seed in an empty directory; raises `Broken` where the broker did."""
    sim = Run(seed, directory)
    try:
        with patch.object(framing, "MOVE_COUNT_MAX", sim.shape.move_count_max):
            for _ in range(sim.random.randrange(1, 6)):
                sim.live()
            sim.finish()
    finally:
        sim.disk.close()
    return sim
