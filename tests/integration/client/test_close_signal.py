"""Closing a client ends every wait at once, and an interrupt does not lose it."""

from __future__ import annotations

import signal
import threading

import pytest

from tidemill.client.transport.close_signal import Closing


def test_a_close_wakes_every_waiter() -> None:
    closing, told = Closing(), []
    waiting = [threading.Thread(target=lambda: told.append(closing.wait(120))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    while len(closing._locks) < 3:
        threading.Event().wait(0.001)
    closing.set()
    for thread in waiting:
        thread.join(120)
    assert told == [True] * 3 and closing.is_set() and not closing._locks
    assert closing.wait(120)  # and who comes later does not wait


def test_a_wait_ends_at_its_timeout() -> None:
    closing = Closing()
    assert not closing.wait(0.001)
    assert not closing.is_set() and not closing._locks


class _Struck(Exception):
    pass


def test_it_can_be_set_after_any_interrupt() -> None:
    closing = Closing()

    def strike(number: int, frame: object) -> None:
        raise _Struck

    def wait_until_struck(after_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        while True:
            closing.wait(0.00005)

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for turn in range(300):
            with pytest.raises(_Struck):
                wait_until_struck(0.0003 + turn * 0.000003)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    closing.set()
    assert closing.wait(120)
