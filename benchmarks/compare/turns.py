"""The measurements, in two rounds for every system, alone on the machine and in its own directory.

*At rest*: idle, a few hundred messages at spread times, then single sends of many threads. *Many pending*: as
many as are asked for are scheduled in bulk, some of them cancelled, a burst falls due at once, and the server
is killed. Each checks that what was answered is there, and that every message came once and none early.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.compare.killing import measure_kill
from benchmarks.compare.messages import Messages, far_messages
from benchmarks.compare.system import Served, System
from benchmarks.compare.worker import Taken, Workers, working
from tidemill.core import processes
from tidemill.core.clock import stopwatch_s, wall_s
from tidemill.core.errors import StorageError
from tidemill.core.limits import HOUR_MS

THREADS = 32
_REST_EVERY_MS = 17  # in step with no poll interval that people choose
_CANCEL_EVERY = 10
_LOOK_EVERY_S = 0.01
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much each measurement takes on."""

    idle_s: float
    rest_count: int
    send_s: float
    pending_count: int
    settle_s: float  # before memory is looked at; Tidemill gives memory back every ten seconds
    burst_count: int
    ahead_ms: int  # from a send to the due time, where that is waited for


FULL = Scale(5.0, 200, 5.0, 1_000_000, 12.0, 100_000, 1_500)
QUICK = Scale(0.2, 20, 0.2, 5_000, 0.1, 1_000, 300)

Figures = dict[str, float]


def measure_at_rest(system: System, directory: Path, poll_s: float, scale: Scale) -> Figures:
    """memory_empty_mb, idle_core_percent, late_min_ms, late_p50_ms, late_p99_ms and send_per_s."""
    figures: Figures = {}
    with system.serving(directory) as served:
        figures |= _memory("memory_empty_mb", served)
        with working(system, served, poll_s, scale.rest_count) as workers:
            _pause(scale.idle_s / 2)  # they connect
            figures["idle_core_percent"] = _idle_percent(served, workers, scale.idle_s)
            spread = np.arange(scale.rest_count, dtype=np.int64) * _REST_EVERY_MS
            messages = Messages(0, _now_ms() + scale.ahead_ms + spread)
            served.ready_to_schedule(messages)()
            late_ms = _once_and_not_early(system, messages, workers.taken()).late_ms
        p50, p99 = np.percentile(late_ms, [50, 99])
        figures |= {"late_min_ms": min(late_ms), "late_p50_ms": float(p50), "late_p99_ms": float(p99)}
        figures["send_per_s"] = _sends_per_s(system, served, scale.send_s)
    return figures


def measure_many(system: System, directory: Path, poll_s: float, scale: Scale) -> Figures:
    """The figures of bulk, cancel, memory and disk, of a burst, and of a kill."""
    with system.serving(directory) as served:
        empty_bytes = served.disk_bytes()
        messages = far_messages(scale.pending_count, _now_ms())
        schedule = served.ready_to_schedule(messages)
        begun_s = stopwatch_s()
        schedule()
        figures = {"bulk_per_s": len(messages) / (stopwatch_s() - begun_s)}
        _require_waiting(system, served, len(messages))
        _pause(scale.settle_s)
        figures |= _memory("memory_mb", served) | _held_memory(served)
        figures["disk_bytes_per_pending"] = (served.disk_bytes() - empty_bytes) / len(messages)
        chosen = range(0, len(messages), _CANCEL_EVERY)
        cancel = served.ready_to_cancel(messages, chosen)
        begun_s = stopwatch_s()
        cancelled = cancel()
        figures["cancel_per_s"] = len(chosen) / (stopwatch_s() - begun_s)
        if cancelled != len(chosen):
            raise StorageError(f"{system.title} cancelled {cancelled} of {len(chosen)} messages that waited")
        _require_waiting(system, served, len(messages) - cancelled)
        ahead_ms = scale.ahead_ms + 3 * int(scale.burst_count / figures["bulk_per_s"] * 1000)
        figures |= _burst(system, served, poll_s, len(messages), scale.burst_count, ahead_ms)
        _require_waiting(system, served, len(messages) - cancelled)
        figures |= measure_kill(served, THREADS, scale.send_s / 5)
    return figures


def _burst(
    system: System, served: Served, poll_s: float, first: int, burst_count: int, ahead_ms: int
) -> Figures:
    """From when all are due, or if that was later, stored."""
    with working(system, served, poll_s, burst_count) as workers:
        messages = Messages(first, np.full(burst_count, _now_ms() + ahead_ms, np.int64))
        served.ready_to_schedule(messages)()
        begun_ms = max(wall_s() * 1000, float(messages.due_ms[0]))
        _pause(begun_ms / 1000 - wall_s())
        queued_ms = _queued_ms(system, served, messages)
        taken = _once_and_not_early(system, messages, workers.taken())
    return {
        "burst_queued_ms": (taken.settled_ms if queued_ms is None else queued_ms) - begun_ms,
        "burst_taken_ms": taken.settled_ms - begun_ms,
    }


def _queued_ms(system: System, served: Served, messages: Messages) -> float | None:
    """When all of them were in the queue; None for systems without one."""
    until_s = stopwatch_s() + _PATIENCE_S
    while (is_so := served.are_queued(messages)) is False:
        if stopwatch_s() > until_s:
            raise StorageError(f"{system.title} did not bring all messages of a burst to its queue")
        _pause(_LOOK_EVERY_S)
    return None if is_so is None else wall_s() * 1000


def _sends_per_s(system: System, served: Served, seconds: float) -> float:
    """Single sends a second of threads that each wait for their answer."""
    numbers, due_ms = count(), _now_ms() + HOUR_MS

    def send_until(until_s: float) -> int:
        sent = 0
        while sent == 0 or stopwatch_s() < until_s:
            served.send(next(numbers), due_ms)
            sent += 1
        return sent

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(send_until, [0.0] * THREADS))  # so that connecting is no part of it
        begun_s = stopwatch_s()
        sent = sum(pool.map(send_until, [begun_s + seconds] * THREADS))
        took_s = stopwatch_s() - begun_s
    _require_waiting(system, served, sent + THREADS)
    return sent / took_s


def _idle_percent(served: Served, workers: Workers, seconds: float) -> float:
    pids = [*served.pids(), *workers.pids()]
    before_s = _cpu_s(pids)
    _pause(seconds)
    return (_cpu_s(pids) - before_s) / seconds * 100


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(map(processes.cpu_s, pids))


def _memory(name: str, served: Served) -> Figures:
    """Nothing for a system that lives in its callers."""
    pids = served.pids()
    return {name: sum(map(processes.pss_mb, pids))} if pids else {}


def _held_memory(served: Served) -> Figures:
    pids = served.pids()
    return {"memory_held_mb": sum(map(processes.held_mb, pids))} if pids else {}


def _once_and_not_early(system: System, messages: Messages, taken: Taken) -> Taken:
    expected = range(messages.first, messages.first + len(messages))
    if sorted(taken.numbers) != list(expected):
        raise StorageError(f"{system.title} did not deliver every message once; the figures mean nothing")
    if min(taken.late_ms) < 0:
        raise StorageError(f"{system.title} delivered a message {-min(taken.late_ms):.1f} ms early")
    return taken


def _require_waiting(system: System, served: Served, expected: int) -> None:
    if (found := served.waiting()) != expected:
        raise StorageError(
            f"{expected} messages should wait in {system.title} and {found} do; the figures mean nothing"
        )


def _now_ms() -> int:
    return int(wall_s() * 1000)


def _pause(seconds: float) -> None:
    threading.Event().wait(max(0.0, seconds))
