"""A real file system that is really full: one of its own in memory, where the machine lets us make one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MB = 600  # two shards preallocate a hundred each


@contextmanager
def small_disk_at(directory: Path) -> Iterator[None]:
    """Mounted there while the block runs; where that is not possible, a plain directory is there."""
    directory.mkdir(parents=True)
    is_mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    if is_mounted:
        command = ["mount", "-t", "tmpfs", "-o", f"size={_MB}m", "tmpfs", str(directory)]
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    """To the last byte, while the block runs."""
    filler = directory / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    try:
        yield
    finally:
        filler.unlink()
