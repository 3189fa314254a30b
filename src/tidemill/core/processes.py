"""Other processes, as the kernel reports them: parent and children, command line, memory and CPU.

Asks `/proc` alone. A process that has ended meanwhile counts for nothing and is no error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MIB = 1 << 20
_TICKS_PER_S = 100.0
# Fields of /proc/<pid>/stat, counted from behind the program's name.
_STATE, _UTIME, _STIME, _START = 3 - 3, 14 - 3, 15 - 3, 22 - 3


def children(pid: int) -> list[int]:
    """Started by any thread of a process."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        found = list(tasks.glob("*/children"))
    except OSError:
        return []
    return [int(child) for task in found for child in _text(task).split()]


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    return [below for child in children(pid) for below in (child, *descendants(child))]


def kill(pids: Iterable[int]) -> None:
    """End them at once, also those that were stopped."""
    for pid in list(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    """Program and arguments, with blanks between."""
    return _text(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def is_java(pid: int) -> bool:
    return command_line(pid).split(" ")[0].endswith("java")


def is_alive(pid: int) -> bool:
    """Whether any thread of it runs (a zombie does not)."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    except OSError:
        return False
    states = [fields[_STATE] for task in tasks if (fields := _stat_fields(task))]
    return any(state not in "ZX" for state in states)


def cpu_s(pid: int) -> float:
    """Processor time so far."""
    fields = _stat_fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S if fields else 0.0


def process_started(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 if it is not known."""
    fields = _stat_fields(Path(f"/proc/{pid}/stat"))
    return int(fields[_START]) if fields else 0


def pss_mb(pid: int) -> float:
    """Proportional resident memory: what is shared counts in parts."""
    return _memory_mb(pid, "Pss:")


def held_mb(pid: int) -> float:
    """Of that, what no file on disk stands behind: the kernel cannot take it back when others need it."""
    return _memory_mb(pid, "Pss_Anon:", "Pss_Shmem:")


def _memory_mb(pid: int, *labels: str) -> float:
    lines = _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return sum(int(line.split()[1]) * 1024 / _MIB for line in lines if line.startswith(labels))


def _stat_fields(path: Path) -> list[str]:
    stat = _text(path)
    # The program's name may hold blanks and brackets; only the last bracket ends it.
    return stat[stat.rfind(")") + 2 :].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
