"""The peer of `client_send_per_s`: the same threads put the same messages into a sorted set of a real Redis.

That is how a delayed queue is made by hand. Measured with every write synced (`appendfsync always`), as the
broker does, and with one sync a second, which is how Redis is mostly run. Only where both `redis-server` and
its Python client are installed.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.cli.bench.in_threads import in_threads
from tidemill.core.clock import stopwatch_s, wall_s
from tidemill.core.errors import StorageError

_READY_S = 10.0
_BODY = "x" * 100


def has_redis() -> bool:
    return shutil.which("redis-server") is not None and importlib.util.find_spec("redis") is not None


def measure_redis(directory: Path, thread_count: int, seconds: float, *, is_durable: bool) -> float:
    """Single ZADDs a second of so many threads that share one client."""
    with _serving(directory, "always" if is_durable else "everysec") as client:
        counts = [0] * thread_count
        until_s = stopwatch_s() + seconds

        def work(index: int) -> None:
            while stopwatch_s() < until_s:
                client.zadd("later", {f"{index}-{counts[index]}-{_BODY}": wall_s() + 3600})
                counts[index] += 1

        took_s = in_threads(thread_count, work)
        if client.zcard("later") != sum(counts):
            raise StorageError("Redis holds other messages than it answered; the figure means nothing")
    return sum(counts) / took_s


@contextmanager
def _serving(directory: Path, syncs: str) -> Iterator[Any]:
    import redis

    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    flags = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": directory,
        "appendonly": "yes",
        "appendfsync": syncs,
    }
    command = ["redis-server", "--save", ""]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port, max_connections=256)
        _wait_until_open(client)
        yield client
    finally:
        process.kill()
        process.wait()


def _wait_until_open(client: Any) -> None:
    from redis.exceptions import ConnectionError as NotYet

    until_s = stopwatch_s() + _READY_S
    while True:
        try:
            client.ping()
        except NotYet:
            if stopwatch_s() > until_s:
                raise StorageError("the Redis to compare with did not start") from None
        else:
            return
