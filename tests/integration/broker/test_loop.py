"""The one loop: wakes, retries after errors with growing pauses, stops when the disk's state is unknown."""

from __future__ import annotations

import logging
import queue
import threading

import pytest

from tidemill.broker.health import Health, Remedy
from tidemill.broker.loop import Service
from tidemill.core.clock import SystemClock
from tidemill.core.errors import CorruptionError, DiskFullError, SyncFailedError
from tidemill.testing import ManualClock


class WatchedClock(ManualClock):
    """A clock that reports every wait to the test, which decides when it ends."""

    def __init__(self) -> None:
        super().__init__(1_000)
        self.waits: queue.Queue[int | None] = queue.Queue()
        self.go_on = threading.Semaphore(0)

    def wait(self, wake: threading.Event, until_ms: int | None) -> None:
        self.waits.put(until_ms)
        self.go_on.acquire()

    def next_wait_ms(self) -> int | None:
        return self.waits.get(timeout=10)


@pytest.fixture
def clock():
    return WatchedClock()


@pytest.fixture
def health():
    found = Health()
    yield found
    assert found.fault is None or found.fault.reason.endswith("no")


def _stop(service: Service, clock: WatchedClock) -> None:
    clock.go_on.release(1_000)
    service.stop()


def test_a_step_is_taken_at_the_start_and_after_every_wait(clock, health):
    seen: list[int] = []

    def step(now_ms: int) -> int:
        seen.append(now_ms)
        return now_ms + 70

    service = Service("test", step, clock, lambda: False, health)
    service.start()
    assert clock.next_wait_ms() == 1_070
    clock.advance(70)
    clock.go_on.release()
    assert clock.next_wait_ms() == 1_140
    _stop(service, clock)
    assert seen[:2] == [1_000, 1_070]


def test_a_nudge_between_step_and_wait_is_not_lost(health):
    clock = ManualClock(1_000)
    steps: queue.Queue[int] = queue.Queue()

    def step(now_ms: int) -> None:
        steps.put(now_ms)
        if steps.qsize() == 1:
            service.wake()  # as a sender might, just before the loop begins to wait

    service = Service("test", step, clock, lambda: False, health)
    service.start()
    assert [steps.get(timeout=10), steps.get(timeout=10)] == [1_000, 1_000]
    service.stop()


def test_pauses_after_errors_grow_to_a_bound_and_begin_anew_after_a_success(clock, health, caplog):
    failing = [True] * 9 + [False, True]

    def step(now_ms: int) -> int:
        if failing.pop(0):
            raise ValueError("broken")
        return now_ms + 7

    service = Service("test", step, clock, lambda: False, health)
    with caplog.at_level(logging.CRITICAL):
        service.start()
        pauses = []
        for _ in range(11):
            pauses.append(clock.next_wait_ms() - 1_000)
            failing or failing.append(False)
            clock.go_on.release()
        _stop(service, clock)
    assert pauses == [50, 100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000, 7, 50]
    assert health.view().failures == {"test": 10}


class _Wake(threading.Event):
    """Ends every wait at once and keeps how long it would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        return False


def test_the_longest_pause_after_errors_is_one_that_the_system_clock_takes(clock, health):
    def step(_now_ms: int) -> int:
        raise DiskFullError("no")

    service = Service("test", step, clock, lambda: False, health)
    service.start()
    pauses = []
    for _ in range(12):
        pauses.append(clock.next_wait_ms() - 1_000)
        clock.go_on.release()
    _stop(service, clock)
    system, wake = SystemClock(), _Wake()
    system.wait(wake, system.now_ms() + pauses[-1])
    assert wake.waits_s[0] == pytest.approx(pauses[-1] / 1_000, abs=0.2)


@pytest.mark.parametrize(
    ("fault", "lines", "traces"), [(ValueError("no"), 12, 1), (DiskFullError("no"), 5, 0)]
)
def test_what_fails_is_reported_and_a_full_disk_without_a_traceback_or_an_end(
    clock, health, caplog, fault, lines, traces
):
    def step(_now_ms: int) -> int:
        raise fault

    service = Service("test", step, clock, lambda: False, health)
    with caplog.at_level(logging.ERROR):
        service.start()
        for _ in range(12):
            clock.next_wait_ms()
            said = list(caplog.records)
            clock.go_on.release()
        with caplog.at_level(logging.CRITICAL):
            _stop(service, clock)
    assert len(said) == lines
    assert sum(bool(record.exc_info) for record in said) == traces


class _Ended(BaseException):
    """What no policy foresees."""


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (SyncFailedError("no"), Remedy.OPERATOR),
        (CorruptionError("no"), Remedy.OPERATOR),
        (_Ended("no"), Remedy.REOPEN),
    ],
)
def test_a_fault_that_leaves_the_disk_unknown_or_ends_the_thread_stops_the_broker(
    clock, health, fault, remedy, caplog
):
    stopped: queue.Queue[bool] = queue.Queue()
    health.when_stopped(lambda: stopped.put(True))
    steps: list[int] = []

    def step(now_ms: int) -> int:
        steps.append(now_ms)
        raise fault

    service = Service("test", step, clock, lambda: False, health)
    with caplog.at_level(logging.CRITICAL + 1):
        service.start()
        assert stopped.get(timeout=10)
        service.stop()
    assert health.fault is not None and health.fault.error is fault and health.fault.remedy is remedy
    assert health.fault.reason.startswith("test: ")
    assert steps == [1_000]
    assert clock.waits.empty()


def test_a_full_disk_makes_room_until_there_is_none_and_tries_again_at_once(clock, health):
    room = [True, True]
    tries: list[int] = []

    def step(now_ms: int) -> int:
        tries.append(now_ms)
        if len(tries) < 3:
            raise DiskFullError("full")
        return 5

    service = Service("test", step, clock, lambda: bool(room) and room.pop(), health)
    assert service.run_once() == 5
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(DiskFullError):
        service.run_once()


def test_steps_by_hand_and_by_the_thread_never_overlap(clock, health):
    inside = threading.Semaphore(1)
    entered, leave = threading.Event(), threading.Event()

    def step(now_ms: int) -> int:
        assert inside.acquire(blocking=False), "two steps at once"
        entered.set()
        leave.wait(10)
        inside.release()
        return now_ms + 5

    service = Service("test", step, clock, lambda: False, health)
    service.start()
    entered.wait(10)
    by_hand = threading.Thread(target=service.run_once)
    by_hand.start()
    leave.set()
    by_hand.join(10)
    assert not by_hand.is_alive()
    assert clock.next_wait_ms() == 1_005
    _stop(service, clock)
