"""The peer of `client_send_per_s`: the same threads put the same messages into a sorted set of a real Redis.

That is how a delayed queue is made by hand. Measured with every write synced (`appendfsync always`), as the
broker does, and with one sync a second, which is how Redis is mostly run. Only where both `redis-server` and
its Python client are installed.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.redis_server import serving_redis
from tidemill.cli.bench.measuring import in_threads
from tidemill.core.clock import stopwatch_s, wall_s
from tidemill.core.errors import StorageError

_BODY = "x" * 100


def measure_redis(directory: Path, thread_count: int, seconds: float, *, is_durable: bool) -> float:
    """Single ZADDs a second of so many threads that share one client."""
    with serving_redis(directory, "always" if is_durable else "everysec") as server:
        counts = [0] * thread_count
        until_s = stopwatch_s() + seconds

        def work(index: int) -> None:
            while stopwatch_s() < until_s:
                server.client.zadd("later", {f"{index}-{counts[index]}-{_BODY}": wall_s() + 3600})
                counts[index] += 1

        took_s = in_threads(thread_count, work)
        if server.client.zcard("later") != sum(counts):
            raise StorageError("Redis holds other messages than it answered; the figure means nothing")
    return sum(counts) / took_s
