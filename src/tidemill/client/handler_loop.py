"""One event loop for all asynchronous handlers of a worker.

They share it, so what belongs to a loop (an `AsyncClient`, a session of an HTTP library) can be created once
and used by every call. The loop runs in a thread of its own; callers block in their own threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any


class HandlerLoop:
    """Thread-safe once it is started."""

    def __init__(self) -> None:
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._turn, name="tidemill-worker loop", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._is_ready.wait()

    def _turn(self) -> None:
        asyncio.run(self._until_ended())

    async def _until_ended(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._is_ready.set()
        await self._end.wait()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the thread of the loop."""
        return threading.current_thread() is self._thread

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """What it comes to, awaited on the loop; raises what it raises."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()

    def end(self) -> None:
        """End it; what its functions left behind is cancelled."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
