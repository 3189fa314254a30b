"""Opening an embedded broker, for Python programs without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.core.clock import Clock
from tidemill.core.config import settings_from
from tidemill.core.errors import RequestError


def open_broker(directory: str | Path, *, clock: Clock | None = None, **settings: Any) -> Broker:
    """Open (or make) a data directory and run a broker on it in this process.

    Settings are those of `BrokerSettings` and the command line, durations as text: `retention="7d"`,
    `lead="10s"`. Close it, or use it in a `with` block. Raises `DirectoryLockedError` if another process has
    the directory.
    """
    if not str(directory):
        raise RequestError("the data directory has no name; use . for the current one")
    return Broker(Path(directory), settings_from(settings), clock=clock)
