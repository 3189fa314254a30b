"""Which systems are compared: Tidemill, and its peers by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare.postgres_system import PostgresSystem
from benchmarks.compare.redis_system import RedisSystem
from benchmarks.compare.sqlite_system import SqliteSystem
from benchmarks.compare.system import System
from benchmarks.compare.tidemill_system import TidemillSystem
from tidemill.core.errors import RequestError

TIDEMILL: System = TidemillSystem()
PEERS: tuple[System, ...] = (RedisSystem(), PostgresSystem(), SqliteSystem())


def system_of(name: str) -> System:
    return next(system for system in (TIDEMILL, *PEERS) if system.name == name)


def chosen_peers(text: str) -> Sequence[System]:
    """The peers that a list with commas names, in our order."""
    names = {name.strip() for name in text.split(",")}
    if unknown := names - {peer.name for peer in PEERS}:
        known = ", ".join(peer.name for peer in PEERS)
        raise RequestError(f"unknown peer {min(unknown)!r}; --peers takes {known}, with commas between")
    return [peer for peer in PEERS if peer.name in names]
