"""One seed, one run: a broker that lives and is stopped, its logs damaged, salvaged, and compared.

The same directory is kept undamaged beside and opened as a *reference*. Salvage keeps seqs and queue
offsets, so the copy is held to the reference one by one: what the report does not name must be the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from simulation.damage import damage, files_below
from simulation.lives import Run
from simulation.model import Broken
from simulation.salvage_compare import compare
from tidemill.broker.salvage import salvage
from tidemill.core.errors import CorruptionError, StorageError
from tidemill.core.holds import Held
from tidemill.log.disk import RealDisk
from tidemill.store.message_store import StoreSettings
from tidemill.testing import FaultyDisk

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.salvage_report import SalvageReport


class SalvagedRun(Run):
    """A run that ends with damage to the commit log, the consumer log or both."""

    crash_chance = 0.0

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.root = directory
        self.done: list[str] = []  # what was damaged, for the one who looks into a failure

    def live(self) -> None:
        broker = self.open()
        self._work(self.random.randrange(5, 80))
        if self.random.random() < 0.5:
            self.close(broker)
        self.disk = self.disk.crash(power_cut=False)
        self.disk.capacity_bytes = None
        self._between_lives()

    def salvage(self) -> None:
        """Damage the stopped broker's logs, salvage them and compare."""
        if self.random.random() < 0.2:
            self.delete("index")
        reference_directory = self.root / "reference"
        shutil.copytree(self.directory, reference_directory)
        reference = self._opened(reference_directory)
        self._damage()
        self._require_refusal_or_opening()
        if not list((self.directory / "log").glob("*.log")):
            self.events["no log left"] += 1
            return
        report = self._salvaged()
        copy = self._opened(self.root / "new")
        scratch = self.root / "scratch-new"
        if findings := copy.check(scratch):
            raise Broken(f"check found in the copy: {findings}")
        compare(reference, copy, report, self.directory, self.root / "new", self.events)
        self._go_on(copy)
        self.events["whole" if report.is_whole else "not whole"] += 1
        self.events["possibly released"] += report.possibly_released
        self.events["lost seqs"] += sum(region.seq_count for region in report.regions)

    def _opened(self, directory: Path) -> Broker:
        return self.shape.open(directory, self.clock, FaultyDisk(seed=1))

    def _damage(self) -> None:
        kinds = self.random.choice((["log"], ["log"], ["log"], ["consumers"], ["log", "consumers"]))
        for _ in range(self.random.choice((1, 1, 2, 4))):
            folder = self.directory / self.random.choice(kinds)
            files = [
                path for path in files_below(folder) if path.name.startswith(("0", "checkpoint", "head"))
            ]
            if not files:
                continue
            path = self.random.choice(files)
            if path.suffix == ".log" and self.random.random() < 0.1:
                path.unlink()
                self.done.append(f"{path.name}: removed")
            else:
                self.done.append(damage(path, self.random, may_truncate=True))

    def _require_refusal_or_opening(self) -> None:
        """A damaged directory opens, or is refused with the file and what to do; it is left as it was."""
        trial = self.root / "trial"
        shutil.copytree(self.directory, trial)
        try:
            self._opened(trial)
            self.events["opened"] += 1
        except (CorruptionError, StorageError) as error:
            self.events["refused"] += 1
            if str(trial) not in str(error) and "index" not in str(error):
                raise Broken(f"the refusal does not name a file: {error}") from error

    def _salvaged(self) -> SalvageReport:
        before = _bytes_of(self.directory)
        settings = StoreSettings(
            segment_bytes=self.shape.segment_bytes,
            consumer_segment_bytes=4_096,
            ballast_bytes=1 << 16,
            sizes=self.shape.index_sizes,
        )
        report = salvage(
            self.directory,
            self.root / "new",
            RealDisk(),
            max(self.clock.now_ms(), self.workload.world.latest_ms),
            lambda *_: None,
            settings,
        )
        if _bytes_of(self.directory) != before:
            raise Broken("salvage changed the damaged directory")
        return report

    def _go_on(self, copy: Broker) -> None:
        """The copy works: everything that is pending goes out, and its own check finds nothing."""
        for topic in list(copy.store.topics):
            copy.topics.change(topic.name, is_paused=False, release_rate_max=0)
        if copy.switches.state != self.workload.world.broker.switches.state:
            raise Broken(f"the copy holds {copy.switches.state}")
        for what in Held:
            copy.switches.resume(what)
        for _ in range(40):
            pending = copy.views.pending(limit=1)
            if not pending:
                break
            due_ms = max(p.deliver_at_ms for p in copy.views.pending(limit=100_000))
            copy.advance_to(max(due_ms, copy.clock.now_ms()) + 1_000)
            copy.run_due()
        if copy.views.pending(limit=1):
            raise Broken(f"still pending in the copy: {copy.views.pending(limit=5)}")
        if findings := copy.check(self.root / "scratch-end"):
            raise Broken(f"check found in the copy at its end: {findings}")
        copy.close()


def _bytes_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_below(directory)}


def run(seed: int, directory: Path) -> SalvagedRun:
    """Run one seed in an empty directory; raises `Broken` where the broker or the salvage did."""
    sim = SalvagedRun(seed, directory)
    try:
        for _ in range(sim.random.randrange(1, 4)):
            sim.live()
        sim.salvage()
    except BaseException as fault:
        fault.add_note("; ".join(sim.done))
        raise
    finally:
        sim.disk.close()
    return sim
