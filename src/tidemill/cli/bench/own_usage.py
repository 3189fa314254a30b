"""What this process uses, as Linux counts it: for measurements that run in a process of their own."""

from __future__ import annotations

from pathlib import Path

_MIB = 1 << 20


def anonymous_mb() -> float:
    """Memory that is not backed by a file."""
    return _number("/proc/self/status", "RssAnon:") * 1024 / _MIB


def written_bytes() -> int:
    """Bytes this process has written to files, also those that the kernel has yet to write."""
    return _number("/proc/self/io", "write_bytes:")


def _number(path: str, label: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(label)), 0)
