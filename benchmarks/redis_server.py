"""A temporary Redis to compare with: whether it is installed, and a server on a directory."""

from __future__ import annotations

import importlib.util
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.socket_place import socket_place
from benchmarks.tied_server import TiedServer

_CONNECTIONS_MAX = 256
_PATIENCE_S = 120.0


def has_redis() -> bool:
    return shutil.which("redis-server") is not None and importlib.util.find_spec("redis") is not None


@dataclass(frozen=True, slots=True)
class RedisServer:
    address: str
    process: TiedServer
    client: Any


def client_of(address: str) -> Any:
    """A client with connections for many threads."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # What fails is tried again by who measures, or ends the measurement.
    # And a socket that gave up before a BLPOP does would lose what is popped just then.
    return redis.Redis(
        unix_socket_path=address,
        max_connections=_CONNECTIONS_MAX,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=_PATIENCE_S,
    )


@contextmanager
def serving_redis(directory: Path, syncs: str) -> Iterator[RedisServer]:
    """A Redis that logs every write, and syncs that log `always` or `everysec`."""
    directory.mkdir()
    with socket_place() as place:
        address = f"{place}/socket"
        flags = {
            "port": 0,
            "unixsocket": address,
            "dir": directory,
            "save": "",
            "appendonly": "yes",
            "appendfsync": syncs,
        }
        words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
        process = TiedServer(["redis-server", *words], directory.with_suffix(".log"), signal.SIGKILL)
        client = client_of(address)
        try:
            process.wait_until_open("Redis", lambda: _answers(client))
            yield RedisServer(address, process, client)
        finally:
            client.close()
            process.stop()


def _answers(client: Any) -> bool:
    from redis.exceptions import ConnectionError as NotYet

    try:
        client.ping()
    except NotYet:
        return False
    return True
