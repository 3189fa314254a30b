"""The workers of a system, each in its own process: the consumer, and if needed the mover.

Run as `python -m benchmarks.compare.worker`; the job comes as one JSON line on standard input. It
says `ready` when it begins; a consumer ends when it has as many messages as the job says, and then prints
what it got as a JSON object. It ends silently when the process that started it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass

from benchmarks.compare.messages import number_and_due
from benchmarks.compare.system import Served, System
from benchmarks.compare.systems import system_of
from tidemill.core import processes
from tidemill.core.clock import wall_s
from tidemill.core.errors import StorageError
from tidemill.core.parent_watch import when_untied

_CONSUME, _MOVE = "consume", "move"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a consumer got: how late each message was, in the order they came, and when all was settled."""

    numbers: list[int]
    late_ms: list[float]
    settled_ms: float


@dataclass(frozen=True, slots=True)
class _Job:
    role: str
    system: str
    address: str
    poll_s: float
    count: int


class Workers:
    """The processes that a system needs to bring so many messages to a consumer."""

    def __init__(self, started: list[subprocess.Popen[str]]) -> None:
        self._processes = started

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def taken(self) -> Taken:
        """Wait for the consumer's end."""
        consumer = self._processes[-1]
        assert consumer.stdout is not None
        said = consumer.stdout.readline()
        if not said:
            raise StorageError("a consumer ended before it had its messages; what it said is above")
        return Taken(**json.loads(said))


@contextmanager
def working(system: System, served: Served, poll_s: float, count: int) -> Iterator[Workers]:
    """A mover, where this system needs one, and a consumer that waits for so many messages."""
    roles = [*([_MOVE] if system.needs_mover else []), _CONSUME]
    started: list[subprocess.Popen[str]] = []
    try:
        for role in roles:
            started.append(_start())
            _hand_over(started[-1], _Job(role, system.name, served.address, poll_s, count))
        yield Workers(started)
    finally:
        processes.kill(process.pid for process in started)
        for process in started:
            process.communicate()


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.compare.worker"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def _hand_over(process: subprocess.Popen[str], job: _Job) -> None:
    """Give it its job; return when it is at work."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asdict(job)) + "\n")
    process.stdin.flush()
    process.stdout.readline()


def _work(job: _Job) -> None:
    system = system_of(job.system)
    print("ready", flush=True)
    if job.role == _MOVE:
        for _ in system.move(job.address, job.poll_s):
            pass
    else:
        print(json.dumps(asdict(_consume(system, job))), flush=True)


def _consume(system: System, job: _Job) -> Taken:
    numbers: list[int] = []
    late_ms: list[float] = []
    with closing(system.consume(job.address, job.poll_s)) as batches:
        for bodies in batches:
            seen_ms = wall_s() * 1000
            for number, due_ms in map(number_and_due, bodies):
                numbers.append(number)
                late_ms.append(seen_ms - due_ms)
            if len(numbers) >= job.count:
                break
    return Taken(numbers, late_ms, wall_s() * 1000)


if __name__ == "__main__":
    given = _Job(**json.loads(sys.stdin.readline()))
    when_untied(lambda: os._exit(1))
    _work(given)
