"""The official Python client inside a test process that other tests have used before."""

from __future__ import annotations

import asyncio
import functools
from typing import Protocol

_loop = functools.cache(asyncio.new_event_loop)  # kept: one that is dropped complains of never being closed


class _Startable(Protocol):
    def startup(self) -> None: ...


def start(client: _Startable) -> None:
    """Start it as in a fresh process, where the main thread can be asked for an event loop.

    It asks for one without setting any; every `asyncio.run` of an earlier test has taken it away.
    """
    asyncio.set_event_loop(_loop())
    client.startup()
