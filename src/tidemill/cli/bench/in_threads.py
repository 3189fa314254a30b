"""Runs a measurement in many threads at once and says how long all of them took."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run `work(index)` in so many threads; returns how long that took. What went wrong in one is raised."""
    faults: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except (OSError, RuntimeError, ValueError, AssertionError, StorageError) as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    begun_s = stopwatch_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return stopwatch_s() - begun_s
