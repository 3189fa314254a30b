"""A real disk whose syncs take longer: how the broker does where a commit is far away.

Owns nothing but the pause. Syncs overlap as they would on such a disk: each pauses for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.log.disk import DiskFile, RealDisk


class _SlowFile:
    """A file that pauses before each sync, and is the real one otherwise."""

    def __init__(self, real: DiskFile, pause: Callable[[], None]) -> None:
        self._real = real
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sync(self) -> None:
        self._pause()
        self._real.sync()


class SlowDisk(RealDisk):
    """Every sync of a file takes at least `sync_ms`."""

    def __init__(self, sync_ms: float) -> None:
        self._sync_s = sync_ms / 1000

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file: Any = _SlowFile(super().open(path, create=create), self._pause)
        slow: DiskFile = file
        return slow

    def _pause(self) -> None:
        threading.Event().wait(self._sync_s)
