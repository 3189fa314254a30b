"""Syncs of one log that overlap: which of them may be believed, and when a file may be closed.

Owns the syncs under way, in the order in which they began. One is believed when it and all that began before
it have succeeded: the operating system reports a failed write to one of the syncs that cover it, and others
may succeed. After a failed one none is believed any more.

A file that is dropped meanwhile stays open until no sync that began before can still want it.

Not thread-safe: the log's sync lock protects it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidemill.log.disk import DiskFile


@dataclass(slots=True)
class Sync:
    """One that began: what was written then is safe when it has succeeded."""

    target: int
    is_ended: bool = False
    closes: list[DiskFile] = field(default_factory=list)


class SyncOrder:
    """The syncs under way."""

    def __init__(self) -> None:
        self._syncs: deque[Sync] = deque()
        self._has_failed = False

    def begin(self, target: int) -> Sync:
        sync = Sync(target)
        self._syncs.append(sync)
        return sync

    def end(self, sync: Sync, *, is_safe: bool) -> int:
        """One is over; returns up to where everything may now be believed to be safe, or 0."""
        sync.is_ended = True
        self._has_failed = self._has_failed or not is_safe
        believed = 0
        while self._syncs and self._syncs[0].is_ended:
            first = self._syncs.popleft()
            believed = first.target
            for file in first.closes:
                file.close()
        return 0 if self._has_failed else believed

    def close(self, file: DiskFile) -> None:
        """Close a file that no sync will ask for any more, or have the last that might do it."""
        if self._syncs:
            self._syncs[-1].closes.append(file)
        else:
            file.close()
