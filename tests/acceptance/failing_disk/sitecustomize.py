"""Makes the disk of a served broker fail while a file says so; on the PYTHONPATH of a `serve` under test.

Every Python of that `serve` loads this module when it starts. The file that `FAILING_DISK` names holds a
word: `sync` makes every sync fail, any other one every write to a file whose path contains it.
"""

from __future__ import annotations

import errno
import os

_order = os.environ["FAILING_DISK"]
_pwrite, _fdatasync = os.pwrite, os.fdatasync


def _ordered() -> str:
    try:
        with open(_order) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def _failing_pwrite(fd: int, data: bytes, offset: int) -> int:
    part = _ordered()
    if part and part != "sync" and part in os.readlink(f"/proc/self/fd/{fd}"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _pwrite(fd, data, offset)


def _failing_fdatasync(fd: int) -> None:
    if _ordered() == "sync":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _fdatasync(fd)


os.pwrite, os.fdatasync = _failing_pwrite, _failing_fdatasync
