"""The two clocks: the machine's and the simulated one."""

from __future__ import annotations

import threading

from tidemill.core.clock import SimulatedClock, SystemClock, stopwatch_s


def test_the_system_clock_reads_the_wall_and_never_runs_backwards_since_boot() -> None:
    clock = SystemClock()
    assert not clock.is_simulated
    assert clock.now_ms() > 1_700_000_000_000
    first = clock.boot_ms()
    assert clock.boot_ms() >= first > 0


def test_the_system_clock_waits_until_the_millisecond_it_was_asked_for() -> None:
    clock = SystemClock()
    until_ms = clock.now_ms() + 5
    clock.wait(threading.Event(), until_ms)
    assert until_ms - 1 <= clock.now_ms()


def test_a_wait_for_the_past_or_a_set_event_returns_at_once() -> None:
    clock = SystemClock()
    wake = threading.Event()
    started_s = stopwatch_s()
    clock.wait(wake, clock.now_ms() - 10_000)
    wake.set()
    clock.wait(wake, clock.now_ms() + 10_000)
    clock.wait(wake, None)
    assert stopwatch_s() - started_s < 0.5


def test_a_doze_never_ends_before_its_moment_and_does_not_last_when_the_clock_was_set_back() -> None:
    clock = SystemClock()
    until_ms = clock.now_ms() + 3
    clock.doze(until_ms)
    assert clock.now_ms() >= until_ms
    started_s = stopwatch_s()
    clock.doze(clock.now_ms() + 60_000)
    clock.doze(clock.now_ms() - 60_000)
    assert stopwatch_s() - started_s < 0.5


def test_simulated_time_moves_only_forward_and_only_by_advance() -> None:
    clock = SimulatedClock(1_000)
    assert clock.is_simulated
    clock.advance_to(40 * 86_400_000)
    assert clock.now_ms() == 40 * 86_400_000
    assert clock.boot_ms() == 40 * 86_400_000 - 1_000
    clock.advance_to(5)
    assert clock.now_ms() == 40 * 86_400_000


def test_a_simulated_wait_for_the_present_returns_at_once() -> None:
    clock = SimulatedClock(1_000)
    started_s = stopwatch_s()
    clock.wait(threading.Event(), 1_000)
    wake = threading.Event()
    wake.set()
    clock.wait(wake, 2_000)
    assert stopwatch_s() - started_s < 0.5
