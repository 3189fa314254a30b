"""What `tidemill.Client` does against a served broker: threads that send, receive and acknowledge, tables.

Each measurement checks what was stored, not only what was answered.
"""

from __future__ import annotations

import pyarrow as pa

from tidemill.cli.bench.measuring import in_threads
from tidemill.cli.bench.workload import tables
from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s, wall_s
from tidemill.core.errors import StorageError
from tidemill.core.limits import HOUR_MS
from tidemill.core.model import Draft

_BODY = bytes(100)
_RECEIVE_BATCH = 32


def measure_threads(endpoint: str, thread_count: int, seconds: float) -> float:
    """Single sends a second of so many threads that share one client."""
    counts = [0] * thread_count
    with Client(endpoint) as client:
        before = client.status().sent
        until_s = stopwatch_s() + seconds

        def work(index: int) -> None:
            while stopwatch_s() < until_s:
                client.send("threads", _BODY, delay=HOUR_MS // 1_000)
                counts[index] += 1

        took_s = in_threads(thread_count, work)
        _require_stored(client.status().sent - before, sum(counts))
    return sum(counts) / took_s


def measure_receive(endpoint: str, count: int, thread_count: int = 4) -> float:
    """Messages a second that were received in batches of 32 and acknowledged."""
    settled: list[str] = []
    with Client(endpoint) as client:
        client.schedule(pa.table({"body": pa.repeat(pa.scalar(_BODY), count)}), topic="receive")

        def work(_: int) -> None:
            while True:
                messages = client.receive_batch("receive", "bench", count=_RECEIVE_BATCH)
                if not messages:
                    return
                if not all(client.ack(*messages)):
                    raise StorageError("an acknowledgement came too late; the figure would mean nothing")
                settled.extend(message.id for message in messages)

        took_s = in_threads(thread_count, work)
    _require_stored(len(set(settled)), count)
    return count / took_s


def measure_flight(endpoint: str, count: int) -> float:
    """Messages a second scheduled as one table."""
    with Client(endpoint) as client:
        table = pa.concat_tables(tables(count, client.status().now_ms))
        before = client.status().pending
        begun_s = stopwatch_s()
        answers = client.schedule(table, topic="flight")
        took_s = stopwatch_s() - begun_s
        assert len(answers) == count
        _require_stored(client.status().pending - before, count)
    return count / took_s


def measure_consumer(endpoint: str, count: int) -> float:
    """p99 of the milliseconds from a message's time to a waiting consumer that has it, at rest."""
    late_ms: list[float] = []
    with Client(endpoint) as client:
        client.topics.create("rest")
        client.groups.set("waiting", start="first")
        due_ms = client.status().now_ms + 1_500
        drafts = [Draft("rest", _BODY, deliver_at_ms=due_ms + 12 * number) for number in range(count)]
        client.send_many(drafts)
        until_s = stopwatch_s() + count * 0.012 + 10

        def work(_: int) -> None:
            while len(late_ms) < count and stopwatch_s() < until_s:
                messages = client.receive_batch("rest", "waiting", wait="1s")
                seen_ms = wall_s() * 1000
                late_ms.extend(seen_ms - (message.deliver_at_ms or 0) for message in messages)

        in_threads(2, work)
    _require_stored(len(late_ms), count)
    if min(late_ms) < 0:
        raise StorageError(f"a message came {-min(late_ms)} ms early")
    return sorted(late_ms)[int(count * 0.99)]


def _require_stored(stored: int, sent: int) -> None:
    if stored != sent:
        raise StorageError(f"{sent} were sent and {stored} are there; the figures would mean nothing")
