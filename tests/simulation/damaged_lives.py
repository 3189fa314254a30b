"""One seed, one run, with damage: the derived files of a stopped broker, and the rows of a running one.

As `lives.py`, but nothing crashes in the middle of an operation: that is tested there. Between two lives
some files under `index/` and `timer/` are damaged in any way; while the broker runs, bytes of entries, queue
rows and find runs are (the scrub comes round to those at once). Afterwards all must hold that always holds.
Damage to the consumers' state does no harm, or opening refuses it; then the bytes are restored.

Only this is allowed: a message that a damaged
timer has forgotten goes when the sweep finds it.
"""

from __future__ import annotations

from pathlib import Path

from simulation.damage import damage, damage_log, files_below
from simulation.lives import Run
from tidemill.broker.broker import Broker
from tidemill.core.errors import CorruptionError

# A minute is swept when it is over; a little later for what is still on its way.
SWEPT_AFTER_MS = 75_000


class DamagedRun(Run):
    """A run whose derived files are damaged."""

    crash_chance = 0.0
    may_be_damaged = True

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.model.late_ms_max = SWEPT_AFTER_MS
        self.done: list[str] = []  # what was damaged, for the one who looks into a failure

    def live(self) -> None:
        broker = self.open()
        self._work(self.random.randrange(5, 60))
        self.check()
        if self.random.random() < 0.5:
            self.close(broker)
        self._crash(0.5)
        self._between_lives()
        for _ in range(self.random.choice((0, 1, 1, 2, 5))):
            self._damage([self.directory / "index", self.directory / "timer"], may_truncate=True)

    def open(self) -> Broker:
        before = self._damage_consumers()
        try:
            return super().open()
        except CorruptionError as error:
            if not before or "consumers" not in str(error):
                raise
            self.events["refused"] += 1
        for path, content in before.items():
            path.write_bytes(content)
        return super().open()

    def _damage_consumers(self) -> dict[Path, bytes]:
        """Perhaps damage one or both checkpoints of the consumers, or their log; the bytes before."""
        if self.random.random() < 0.7:
            return {}
        files = files_below(self.directory / "consumers")
        if self.random.random() < 0.4:
            files = [path for path in files if path.suffix == ".log"]
        else:
            files = [path for path in files if path.name.startswith("checkpoint.")]
        damaged = files if self.random.random() < 0.3 else files[self.random.randrange(2) :][:1]
        before = {path: path.read_bytes() for path in damaged}
        for path in damaged:
            if path.suffix == ".log":
                done = damage_log(path, self.random)
            else:
                done = damage(path, self.random, may_truncate=True)
            self.done.append(f"consumers/{done}")
        return before

    def _damage_find(self) -> None:
        """Damage a run of the find index and let the scrub come round to it."""
        self._damage([self.directory / "index" / "find"], may_truncate=False)
        store = self.workload.world.broker.store
        for _ in range(2 * len(store.find.files) + 1):
            while store.look_after_find(scrub_bytes=1 << 30):
                pass

    def _work(self, count: int) -> None:
        for _ in range(count):
            self.workload.act()
            if self.random.random() < 0.1:
                index = self.directory / "index"
                self._damage([index / "entries", index / "queues"], may_truncate=False)
            if self.random.random() < 0.03:
                self._damage_find()
            if self.random.random() < 0.05:
                self.check()

    def _damage(self, directories: list[Path], *, may_truncate: bool) -> None:
        files = [path for directory in directories for path in files_below(directory)]
        if files:
            self.done.append(damage(self.random.choice(files), self.random, may_truncate=may_truncate))
            self.events[self.done[-1].split(": ")[1].split(" at")[0].lstrip("0123456789 ")] += 1


def run(seed: int, directory: Path) -> DamagedRun:
    """Run one seed in an empty directory; raises `Broken` where the broker did."""
    sim = DamagedRun(seed, directory)
    try:
        for _ in range(sim.random.randrange(1, 6)):
            sim.live()
        sim.finish()
    finally:
        sim.disk.close()
    return sim
