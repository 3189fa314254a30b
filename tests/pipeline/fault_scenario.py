"""A served broker with Spark beside it, under load, for tests that hurt one of its processes.

`SparkServe` knows the processes: supervisor, broker, driver, Java, Python workers. `Load` sends near and far
messages from a client of its own all the while, and at the end reads the history: every message that was
answered is in its topic once, none early, and 99 of 100 were not held up, whatever was killed meanwhile. How
late they were is printed (`pytest -s`), and beside it what a `Metronome` says of the machine itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

import tidemill
from acceptance.serving import Served, is_alive
from pipeline.spark_broker import wait_for
from tidemill.core.clock import stopwatch_s
from tidemill.core.model import Draft, Receipt
from tidemill.timer.shard_lock import LOCK_NAME, holders_by_kernel

LEAD_MS = 8_000
# Not a measure of speed: whoever waits for something killed waits for seconds, until a limit of time.
_HELD_UP_MS = 1_000
_FLAGS = ("--pipeline", "spark", "--spark-master", "local[2]", "--flight-port", "0", "--lead", f"{LEAD_MS}ms")
_BATCH = 20
_BATCH_EVERY_S = 0.1
_CATCH_S = 60.0
_CATCH_EVERY_S = 0.001


class SparkServe(Served):
    """One `tidemill serve` with its pipeline, and the processes below it."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory, *_FLAGS, *flags)

    def client(self) -> tidemill.Client:
        return tidemill.Client(self.endpoint, retry_for="60s")

    def pipeline(self) -> dict[str, object]:
        with self.client() as client:
            fields: dict[str, object] = dict(client.status().fields["pipeline"])
            return fields

    def wait_for_spark(self) -> None:
        wait_for("Spark turns the wheel", lambda: self.pipeline()["runner"] == "spark")

    def wait_for_broker(self) -> None:
        wait_for("the broker turns the wheel", lambda: self.pipeline()["runner"] == "embedded")

    # -- processes --------------------------------------------------------------------------------

    def below(self) -> list[int]:
        """Every process that this serve started, from the broker down."""
        return [pid for broker in self.broker_pids() for pid in (broker, *descendants(broker))]

    def driver(self) -> int:
        (pid,) = [pid for pid in self.below() if "tidemill.pipeline.driver" in command_line(pid)]
        return pid

    def java(self) -> int:
        (pid,) = [
            pid for pid in descendants(self.driver()) if command_line(pid).split(" ")[0].endswith("java")
        ]
        return pid

    def stop_in_a_step(self) -> int:
        """Stop (SIGSTOP) a Python worker that holds a shard's lock at this moment; its process id."""
        until_s = stopwatch_s() + _CATCH_S
        while stopwatch_s() < until_s:
            workers = set(descendants(self.java()))
            for _ in range(500):
                threading.Event().wait(_CATCH_EVERY_S)
                for pid in self._lock_holders() & workers:
                    os.kill(pid, signal.SIGSTOP)
                    if pid in self._lock_holders():
                        return pid
                    os.kill(pid, signal.SIGCONT)  # it had just finished
        raise AssertionError("no Python worker was caught in the middle of a step")

    def _lock_holders(self) -> set[int]:
        """Who holds the lock of a shard, as the kernel knows it; nobody is disturbed by asking."""
        locks = self.directory.glob(f"timer/shard-*/{LOCK_NAME}")
        return {holder.pid for lock in locks for holder in holders_by_kernel(lock)}


def descendants(pid: int) -> list[int]:
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for task in tasks for child in task.split()]
    return [*children, *(below for child in children for below in descendants(child))]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def wait_until_gone(pids: list[int]) -> None:
    wait_for("the processes end", lambda: not any(is_alive(pid) for pid in pids))


_BEAT = """
import os, select, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 1 << 20)
due, late = time.monotonic(), []
while not select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
    os.pwrite(fd, bytes(200), 200 * (len(late) % 5000))
    os.fdatasync(fd)
    late.append((time.monotonic() - due) * 1000)
    due = max(due + 0.01, time.monotonic())
print(sorted(late)[len(late) * 99 // 100])
"""


class Metronome:
    """Another process that writes and syncs a few bytes a hundred times a second: how late is it, p99?"""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-c", _BEAT, str(directory / "metronome")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> float:
        said, _ = self._process.communicate("\n")
        return float(said)


class Load:
    """Sends until it is left, then waits until all are out and compares with the history."""

    def __init__(self, served: SparkServe, topic: str) -> None:
        self._served = served
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._sent: dict[str, int] = {}  # id -> due time, as answered
        self._faults: list[object] = []
        self._outages: list[tuple[int, int]] = []
        self.vias: Counter[str] = Counter()
        self.late_p99_ms = 0.0

    def __enter__(self) -> Load:
        self._metronome = Metronome(self._served.directory.parent)
        self._thread.start()
        self.wait_for_more(4 * _BATCH)
        return self

    def wait_for_more(self, count: int) -> None:
        """Return when so many more are sent."""
        enough = len(self._sent) + count
        wait_for("the load goes on", lambda: len(self._sent) >= enough or bool(self._faults))
        assert not self._faults

    @contextmanager
    def broker_is_away(self) -> Iterator[None]:
        """What falls due while the broker itself is dead can only be late."""
        with self._served.client() as client:
            from_ms = client.status().now_ms
            yield
            wait_for("the broker is back", self._served.is_ready)
            self._outages.append((from_ms, client.status().now_ms))

    def _run(self) -> None:
        with self._served.client() as client:
            number = 0
            while not self._is_over.wait(_BATCH_EVERY_S):
                # Half of them near, half through the wheel, due at many different milliseconds.
                delays = [(500 if i % 2 else LEAD_MS + 1_000) + 97 * i for i in range(_BATCH)]
                drafts = [Draft(self._topic, str(number).encode(), delay_ms=delay) for delay in delays]
                number += 1
                for answer in client.send_many(drafts):
                    if isinstance(answer, Receipt):
                        self._sent[answer.id] = answer.deliver_at_ms
                    else:
                        self._faults.append(answer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        try:
            if error is None:
                assert not self._faults
                with self._served.client() as client:
                    wait_for("everything is out", lambda: client.status().pending == 0)
        finally:
            machine_p99_ms = self._metronome.stop()
        if error is None:
            self._settle(machine_p99_ms)

    def _settle(self, machine_p99_ms: float) -> None:
        with self._served.client() as client:
            columns = ["id", "deliver_at", "lateness_ms", "via"]
            history = client.history_table(self._topic, columns=columns)
        ids = history["id"].to_pylist()
        assert not [id_ for id_, count in Counter(ids).items() if count > 1], "twice in its topic"
        assert set(ids) == set(self._sent), "lost, or nobody sent it"
        late_ms = history["lateness_ms"].to_numpy()
        assert late_ms.min() >= 0, "early"
        due_ms = np.array([self._sent[id_] for id_ in ids])
        counts = np.ones(len(ids), np.bool_)
        for from_ms, to_ms in self._outages:
            counts &= (due_ms < from_ms) | (due_ms > to_ms)
        self.late_p99_ms = float(np.percentile(late_ms[counts], 99))
        self.vias = Counter(history["via"].to_pylist())
        # Shown when the test fails: how late, and how many ms after the load began each of them was due.
        worst = sorted(zip(late_ms[counts].tolist(), (due_ms[counts] - due_ms.min()).tolist(), strict=True))
        print(
            f"{self._topic}: {len(ids)} messages, p99 {self.late_p99_ms:.1f} ms "
            f"(the machine {machine_p99_ms:.1f} ms), {dict(self.vias)}"
        )
        print(f"the latest: {worst[-len(worst) // 100 :]}")
        assert self.late_p99_ms < _HELD_UP_MS + machine_p99_ms
