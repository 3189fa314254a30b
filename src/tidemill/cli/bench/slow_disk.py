"""A real disk whose syncs take some time: how the broker does where a commit is far away.

Owns nothing but the pause. Syncs overlap as they would on such a disk: each pauses for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.core.clock import stopwatch_s
from tidemill.log.disk import DiskFile, RealDisk


class _SlowFile:
    """A file that pauses in each sync, and is the real one otherwise."""

    def __init__(self, real: DiskFile, pause: Callable[[float], None]) -> None:
        self._real = real
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sync(self) -> None:
        begun_s = stopwatch_s()
        self._real.sync()
        self._pause(begun_s)


class SlowDisk(RealDisk):
    """Every sync of a file takes at least `sync_ms`."""

    def __init__(self, sync_ms: float) -> None:
        self._sync_s = sync_ms / 1000

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file: Any = _SlowFile(super().open(path, create=create), self._pause)
        slow: DiskFile = file
        return slow

    def _pause(self, begun_s: float) -> None:
        """The rest of the time that a sync takes which began then."""
        threading.Event().wait(max(0.0, self._sync_s - (stopwatch_s() - begun_s)))
