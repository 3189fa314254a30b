"""kill -9 while many threads send: how long no send is answered, and whether answered messages are stored.

A thread whose send fails retries the same message until it is answered, as callers do. So in the end
every message was answered and must be stored once.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from benchmarks.compare.system import Served
from tidemill.core.clock import stopwatch_s, wall_s
from tidemill.core.errors import StorageError
from tidemill.core.limits import HOUR_MS

_FIRST = 500_000_000  # numbers that no other measurement uses
_AGAIN_S = 0.01
_PATIENCE_S = 120.0
# Before all others that wait, and far enough away that none falls due meanwhile.
_DELAY_MS = HOUR_MS // 2


def measure_kill(served: Served, thread_count: int, seconds: float) -> dict[str, float]:
    """killed_down_s, killed_lost and killed_doubled; nothing where there is no server to kill."""
    numbers, due_ms = count(_FIRST), int(wall_s() * 1000) + _DELAY_MS
    is_over, pause = threading.Event(), threading.Event()

    def work(_: int) -> list[int]:
        answered = []
        while not is_over.is_set():
            number = next(numbers)
            _send_until_answered(served, number, due_ms)
            answered.append(number)
        return answered

    with ThreadPoolExecutor(thread_count) as pool:
        try:
            at_work = [pool.submit(work, index) for index in range(thread_count)]
            pause.wait(seconds)
            killed_s = stopwatch_s()
            has_server = served.kill_and_start()
            probe = next(numbers)
            while not served.is_back(probe, due_ms):
                _require_patience(killed_s)
                pause.wait(_AGAIN_S)
            down_s = stopwatch_s() - killed_s
            pause.wait(seconds)
        finally:
            is_over.set()
        answered = [probe, *(number for future in at_work for number in future.result())]
    stored = Counter(served.stored(due_ms))
    figures = {
        "killed_down_s": down_s,
        "killed_lost": float(sum(number not in stored for number in answered)),
        "killed_doubled": float(stored.total() - len(stored)),
    }
    return figures if has_server else {}


def _send_until_answered(served: Served, number: int, due_ms: int) -> None:
    begun_s, pause = stopwatch_s(), threading.Event()
    while True:
        try:
            served.send(number, due_ms)
        except served.away_errors:
            _require_patience(begun_s)
            pause.wait(_AGAIN_S)
        else:
            return


def _require_patience(since_s: float) -> None:
    if stopwatch_s() - since_s > _PATIENCE_S:
        raise StorageError(f"a server that was killed is not back after {_PATIENCE_S:.0f} s")
