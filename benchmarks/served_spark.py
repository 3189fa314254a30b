"""A `tidemill serve` with Spark, whose processes can be found and killed one by one.

Owns the way from a role to a process id: broker, driver, Java, and a Python worker in the middle of a step.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from tidemill.cli.child_broker import ChildBroker
from tidemill.cli.child_processes import wait_for
from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.core.processes import command_line, descendants, is_alive, is_java
from tidemill.log.disk import RealDisk
from tidemill.timer.shard_lock import LOCK_NAME, holders_by_kernel
from tidemill.timer.target import read_cursor, shard_directories

LEAD_MS = 8_000
_FLAGS = ("--pipeline", "spark", "--flight-port", "0", "--lead", f"{LEAD_MS}ms")
_DRIVER = "tidemill.pipeline.driver"
_WORKER = "tidemill.pipeline.worker_daemon"
_CATCH_S = 120.0
_CATCH_EVERY_S = 0.001
# New entries call for a step after a quarter of the lead; then Spark has to notice and to begin.
_STEP_WITHIN_S = LEAD_MS / 4_000 + 2.0


class ServedSpark(ChildBroker):
    """The serve, and the processes below it."""

    def __init__(self, directory: Path, master: str = "local[2]") -> None:
        super().__init__(directory, *_FLAGS, "--spark-master", master)

    def client(self) -> Client:
        """One that sits out a broker's restart."""
        return Client(self.endpoint, retry_for="60s")

    def pipeline(self) -> dict[str, object]:
        """What the status says of it."""
        with self.client() as client:
            fields = client.status().fields["pipeline"]
        assert isinstance(fields, dict)
        return fields

    def wait_for_spark(self) -> None:
        wait_for("Spark is the timer runner", lambda: self.pipeline()["runner"] == "spark")

    def wait_for_step(self) -> None:
        """Wait until Spark is the timer runner and has finished a step from now on."""
        disk, timer = RealDisk(), self.directory / "timer"

        def steps() -> list[tuple[int, int] | None]:
            found = [read_cursor(disk, shard) for shard in shard_directories(disk, timer)]
            return [None if cursor is None else (cursor.epoch, cursor.step) for cursor in found]

        self.wait_for_spark()
        before = steps()
        wait_for("Spark takes a step", lambda: steps() != before and self.pipeline()["runner"] == "spark")

    def wait_for_broker(self) -> None:
        wait_for("the broker is the timer runner", lambda: self.pipeline()["runner"] == "embedded")

    # -- processes --------------------------------------------------------------------------------

    def below(self) -> list[int]:
        """Every process from the broker down."""
        return [pid for broker in self.broker_pids() for pid in (broker, *descendants(broker))]

    def driver(self) -> int:
        return _the_one("the driver runs", self.below, lambda pid: _DRIVER in command_line(pid))

    def java(self) -> int:
        driver = self.driver()
        return _the_one("Java runs", lambda: descendants(driver), is_java)

    def stop_in_a_step(self, work: Callable[[], None]) -> int:
        """Stop (SIGSTOP) a Python worker while it holds a shard's lock; its process id.

        `work` makes entries to absorb, so that a step is called for and takes its time.
        """
        until_s = stopwatch_s() + _CATCH_S
        while stopwatch_s() < until_s:
            work()
            look_until_s = stopwatch_s() + _STEP_WITHIN_S
            while stopwatch_s() < look_until_s:
                if (caught := self._stop_a_holder()) is not None:
                    return caught
                threading.Event().wait(_CATCH_EVERY_S)
        raise StorageError("no Python worker was caught in the middle of a step")

    def _stop_a_holder(self) -> int | None:
        for pid in self._lock_holders():
            if _WORKER in command_line(pid):
                os.kill(pid, signal.SIGSTOP)
                if pid in self._lock_holders():
                    return pid
                os.kill(pid, signal.SIGCONT)  # it had just finished
        return None

    def _lock_holders(self) -> set[int]:
        """The processes that hold the lock of a shard, as the kernel reports them, without taking it."""
        locks = self.directory.glob(f"timer/shard-*/{LOCK_NAME}")
        return {holder.pid for lock in locks for holder in holders_by_kernel(lock)}


def wait_until_gone(pids: list[int]) -> None:
    wait_for("the processes end", lambda: not any(map(is_alive, pids)))


def _the_one(what: str, among: Callable[[], list[int]], is_it: Callable[[int], bool]) -> int:
    """A process between its fork and its exec looks like its parent: then there are two for a moment."""
    found: list[int] = []

    def look() -> bool:
        found[:] = filter(is_it, among())
        return len(found) == 1

    wait_for(what, look)
    return found[0]
