"""A common peer: a sorted set in Redis, by due time, and a loop that moves due messages.

The mover takes what is due out of the set and appends it to a list in one Lua script, so nothing is lost
between the two; consumers wait in BLPOP. Every write is synced before it is answered (`appendfsync always`).
A popped message is gone from Redis: unlike Tidemill's, it is lost when its consumer dies.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.compare.messages import Messages, body_of, number_and_due
from benchmarks.compare.system import BATCH, Served
from benchmarks.redis_server import RedisServer, client_of, has_redis, serving_redis
from tidemill.cli.child_processes import wait_for
from tidemill.core.clock import wall_s
from tidemill.log.disk import RealDisk

_SET, _LIST = "waiting", "due"
_MEMBERS_AT_ONCE = 1000
_COMMANDS_AT_ONCE = 10
_MOVE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due > 0 then
    redis.call('ZREM', KEYS[1], unpack(due))
    redis.call('RPUSH', KEYS[2], unpack(due))
end
return #due
"""


class RedisSystem:
    name = "redis"
    title = "Redis"
    needs_mover = True

    def missing(self, directory: Path) -> str:
        server = "" if shutil.which("redis-server") else "`redis-server`"
        package = "" if has_redis() or server else "the Python package `redis` (`pip install redis`)"
        return f"install {server or package}" if server or package else ""

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Served]:
        with serving_redis(directory, "always") as server:
            yield _ServedRedis(directory, server)

    def consume(self, address: str, poll_s: float) -> Generator[list[bytes]]:
        with closing(client_of(address)) as client:
            while True:
                popped = client.blpop([_LIST], timeout=5)
                if popped:
                    yield [popped[1], *(client.lpop(_LIST, BATCH - 1) or ())]

    def move(self, address: str, poll_s: float) -> Generator[int]:
        pause = threading.Event()
        with closing(client_of(address)) as client:
            move = client.register_script(_MOVE)
            while True:
                count = move(keys=[_SET, _LIST], args=[int(wall_s() * 1000), _MEMBERS_AT_ONCE])
                yield count
                if count < _MEMBERS_AT_ONCE:
                    pause.wait(poll_s)


class _ServedRedis:
    def __init__(self, directory: Path, server: RedisServer) -> None:
        self._directory = directory
        self._server = server
        self._client: Any = server.client

    @property
    def address(self) -> str:
        return self._server.address

    def pids(self) -> list[int]:
        return self._server.process.pids()

    def send(self, number: int, due_ms: int) -> None:
        self._client.zadd(_SET, {body_of(number, due_ms): due_ms})

    def stored(self, due_ms: int) -> list[int]:
        return [number_and_due(body)[0] for body in self._client.zrangebyscore(_SET, due_ms, due_ms)]

    def kill_and_start(self) -> bool:
        self._server.process.kill_and_start()
        return True

    def is_back(self, number: int, due_ms: int) -> bool:
        with closing(client_of(self._server.address)) as client:
            try:
                client.zadd(_SET, {body_of(number, due_ms): due_ms})
            except self.away_errors:
                return False
        return True

    @property
    def away_errors(self) -> tuple[type[Exception], ...]:
        from redis.exceptions import RedisError

        return (RedisError,)

    def ready_to_schedule(self, messages: Messages) -> Callable[[], None]:
        members = [(body, due_ms) for _, due_ms, body in messages.rows()]
        commands = [dict(part) for part in _parts(members, _MEMBERS_AT_ONCE)]

        def schedule() -> None:
            for part in _parts(commands, _COMMANDS_AT_ONCE):
                with self._client.pipeline(transaction=False) as pipeline:
                    for command in part:
                        pipeline.zadd(_SET, command)
                    pipeline.execute()

        return schedule

    def ready_to_cancel(self, messages: Messages, numbers: Sequence[int]) -> Callable[[], int]:
        due_ms = messages.due_ms
        members = [body_of(number, int(due_ms[number - messages.first])) for number in numbers]

        def cancel() -> int:
            removed = 0
            for part in _parts(_parts(members, _MEMBERS_AT_ONCE), _COMMANDS_AT_ONCE):
                with self._client.pipeline(transaction=False) as pipeline:
                    for chosen in part:
                        pipeline.zrem(_SET, *chosen)
                    removed += sum(pipeline.execute())
            return removed

        return cancel

    def waiting(self) -> int:
        return int(self._client.zcard(_SET))

    def are_queued(self, messages: Messages) -> bool | None:
        return not self._client.zcount(_SET, "-inf", int(messages.due_ms.max()))

    def disk_bytes(self) -> int:
        # It writes its log anew when that has doubled; until then there are two.
        wait_for("Redis has rewritten its log", lambda: not self._is_rewriting())
        return RealDisk().allocated_bytes(self._directory)

    def _is_rewriting(self) -> bool:
        said = self._client.info("persistence")
        return bool(said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"])


def _parts(whole: list[Any], size: int) -> list[list[Any]]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]
