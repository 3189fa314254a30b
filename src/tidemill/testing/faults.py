"""Planned faults: the plan, and the check that every operation on a `FaultyDisk` passes.

A plan is plain data and chance comes from a seed, so a failing run is replayed by its numbers.

Invariant: after a crash no operation passes the check again, from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import RLock

_TRACE_LINES_MAX = 2_000


class SimulatedCrash(BaseException):
    """The process died here. Not an `Exception`: no handler of the code under test may catch it."""


@dataclass(frozen=True)
class FaultPlan:
    """Faults by number, counted from 1 since the plan was armed.

    Counted are `sync`, `sync_dir` and `rename`; with `count_writes` also `create`, `write`, `scatter`,
    `truncate`, `preallocate`, `remove` and `remove_tree`.
    """

    crash_at: int | None = None  # die at this counted operation
    crash_after: bool = False  # False: before it took effect (a write may be half done); True: right after
    count_writes: bool = False
    fail_sync_at: int | None = None  # this sync of a file raises SyncFailedError and persists nothing


class FaultInjector:
    """Lets operations pass one at a time, counts them, and kills the process where the plan says so."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lock = RLock()  # protects the whole disk: each operation is one step
        self.is_shut = False
        self.trace: deque[str] = deque(maxlen=_TRACE_LINES_MAX)
        self.arm(FaultPlan())

    def arm(self, plan: FaultPlan) -> None:
        with self.lock:
            self.plan = plan
            self.operation_count = 0
            self.sync_count = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Hold the disk for one call; a dead process gets no further."""
        with self.lock:
            if self.is_shut:
                raise SimulatedCrash("this process has crashed; use the disk that crash() returned")
            yield

    @contextmanager
    def operation(
        self, kind: str, path: Path, detail: object = "", *, is_write: bool = False
    ) -> Iterator[None]:
        """Hold the disk for one operation that the plan may count; the crash falls before or after it."""
        with self.passing():
            is_last = False
            if not is_write or self.plan.count_writes:
                self.operation_count += 1
                is_last = self.operation_count == self.plan.crash_at
            self.trace.append(f"{self.operation_count} {kind} {path.parent.name}/{path.name} {detail}")
            if is_last and not self.plan.crash_after:
                self._die("before", kind, path)
            yield
            if is_last:
                self._die("after", kind, path)

    def sync_shall_fail(self) -> bool:
        self.sync_count += 1
        return self.sync_count == self.plan.fail_sync_at

    def _die(self, when: str, kind: str, path: Path) -> None:
        self.is_shut = True
        message = f"crash {when} operation {self.operation_count}: {kind} {path.name}"
        self.trace.append(message)
        raise SimulatedCrash(message)
