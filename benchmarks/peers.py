"""The installed peers for single sends of Python threads.

Each is measured twice: with every write synced, as in the broker, and without, as it is usually run.
Machines differ more than the systems do, so the result is also given as a ratio to the peer on the same
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peer_beanstalkd import has_beanstalkd, measure_beanstalkd
from benchmarks.peer_redis import measure_redis
from benchmarks.redis_server import has_redis
from tidemill.cli.bench.figures import THREADS_TARGET_PER_S

Measure = Callable[[Path, int, float], float]  # a new directory, threads, seconds: sends a second


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer in two ways."""

    name: str  # as people write it
    does: str  # what stands for a send
    install: str
    is_here: Callable[[], bool]
    measure: Callable[..., float]
    unsynced_is: str
    where_set_per_s: tuple[int, int]  # what it did, unsynced, on the machine where the target was set

    def figures(self) -> dict[str, Measure]:
        """What there is to measure, by the name of the figure."""
        return {
            f"peer_{self.name.lower()}_send_per_s": partial(self.measure, is_durable=True),
            f"peer_{self.name.lower()}_unsynced_send_per_s": partial(self.measure, is_durable=False),
        }

    def sentence(self, figures: dict[str, float], ours: float) -> str:
        synced, unsynced = (figures[name] for name in self.figures())
        least, most = (THREADS_TARGET_PER_S / per_s for per_s in reversed(self.where_set_per_s))
        return (
            f"The same threads, {self.does} that syncs every write: {synced:,.0f} /s; Tidemill does "
            f"{ours / synced:.1f} times that. {self.unsynced_is}: {unsynced:,.0f} /s, Tidemill "
            f"{ours / unsynced:.1f} times that; where the target was set, it was {least:.1f} to {most:.1f} "
            "times."
        )


PEERS = (
    Peer(
        "Redis",
        "ZADD into a Redis",
        "`redis-server` and the Python package `redis`",
        has_redis,
        measure_redis,
        "One that syncs once a second",
        (14_000, 24_000),
    ),
    Peer(
        "beanstalkd",
        "put into a beanstalkd",
        "`beanstalkd`",
        has_beanstalkd,
        measure_beanstalkd,
        "One that keeps them in memory alone",
        (24_000, 38_000),
    ),
)


def peers_here() -> list[Peer]:
    return [peer for peer in PEERS if peer.is_here()]
