"""Measures the maximum rate of Python threads that send one message at a time, without a broker.

    .venv/bin/python -m benchmarks.thread_ceiling

First how long a turn takes to go from one thread to the next, round and round. Then how many sends a second
32 threads get through the client's own way of joining them, from the call to the receipt, where requests are
made and answers read as ever, but come from a stand-in that only waits for a time. `tidemill bench server`
has what they get from a real broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tidemill.client.send.coalescer import Coalescer
from tidemill.client.send.drafts import draft_of
from tidemill.core.model import Draft
from tidemill.core.send_answers import Answer, decode_answers, encode_answers
from tidemill.core.send_batch import encode_drafts

_THREADS = 32
_TURNS = 3_000
_SECONDS = 4.0
_ANSWERS_MS = (0.1, 0.3, 0.5, 1.0)
_BODY = bytes(100)


def in_threads(work: list[threading.Thread]) -> float:
    begun_s = time.perf_counter()
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    return time.perf_counter() - begun_s


def turn_us() -> float:
    """How long until the next thread has the turn."""
    gates = [threading.Lock() for _ in range(_THREADS)]
    for gate in gates[1:]:
        gate.acquire()

    def pass_on(index: int) -> None:
        for _ in range(_TURNS):
            gates[index].acquire()
            gates[(index + 1) % _THREADS].release()

    threads = [threading.Thread(target=pass_on, args=(index,)) for index in range(_THREADS)]
    return in_threads(threads) / _TURNS / _THREADS * 1e6


def sends_per_s(answer_ms: float) -> tuple[float, float]:
    """Sends a second, and how many of them shared a request."""
    requests = 0

    def answered(drafts: Sequence[Draft]) -> list[Answer]:
        nonlocal requests
        requests += 1
        encode_drafts(drafts)
        time.sleep(answer_ms / 1000)
        ones, nowhere = [1] * len(drafts), [-1] * len(drafts)
        return decode_answers(encode_answers("stand-in", ones, ones, nowhere, nowhere), drafts)

    coalescer = Coalescer(answered)
    counts = [0] * _THREADS
    until_s = time.perf_counter() + _SECONDS

    def send(index: int) -> None:
        while time.perf_counter() < until_s:
            coalescer.send(draft_of("orders", _BODY, delay=3_600))
            counts[index] += 1

    took_s = in_threads([threading.Thread(target=send, args=(index,)) for index in range(_THREADS)])
    return sum(counts) / took_s, sum(counts) / requests


def main() -> None:
    print(f"a turn to the next of {_THREADS} threads: {turn_us():.1f} µs")
    for answer_ms in _ANSWERS_MS:
        rate, shared = sends_per_s(answer_ms)
        print(f"an answer after {answer_ms} ms: {rate:,.0f} sends a second, {shared:.0f} in a request")


if __name__ == "__main__":
    main()
