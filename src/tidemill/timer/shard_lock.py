"""The lock of a shard, and who holds it.

Owns the note in the lock file: process id and the start time of that process. The two together name one
process for ever, so a takeover can end a holder without hitting a stranger that got its id later.

    pid 4711 started 123456789

A process that stands still between taking the lock and leaving its note is found by asking the kernel.
Leaves to others: ending the holder.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.processes import process_started
from tidemill.log.disk import Disk, LockHandle

LOCK_NAME = "lock"

_NOTE = re.compile(r"pid (\d+) started (\d+)")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. `started` is its start time in clock ticks since boot, 0 where that is not known."""

    pid: int
    started: int

    def __str__(self) -> str:
        return f"pid {self.pid} started {self.started}"


def parse_holder(note: str) -> Holder | None:
    found = _NOTE.search(note)
    return Holder(int(found[1]), int(found[2])) if found else None


def holders_by_kernel(lock_path: Path) -> list[Holder]:
    """The lock's holder, as the kernel reports it; empty where it does not (not Linux, or no such lock)."""
    try:
        status = os.stat(lock_path)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    file = f"{device}:{status.st_ino}"
    # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
    pids = [int(words[4]) for words in map(str.split, lines) if words[1] == "FLOCK" and words[5] == file]
    return [Holder(pid, process_started(pid)) for pid in pids]


def take_shard_lock(disk: Disk, directory: Path) -> LockHandle:
    """Lock a shard for this process; raises `DirectoryLockedError` if another process has it."""
    pid = os.getpid()
    return disk.lock(directory / LOCK_NAME, str(Holder(pid, process_started(pid))))
