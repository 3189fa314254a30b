"""Asks the operating system to begin writing bytes that will be synced in a moment.

Owns the one call that Python does not offer. It promises nothing and takes nothing away: what fails is told
by the sync that follows, which alone makes bytes safe. Where there is no such call, the sync does it all.
"""

from __future__ import annotations

import ctypes
from typing import Final

_BEGIN: Final = 2  # SYNC_FILE_RANGE_WRITE: hand the pages over, wait for none

_call = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _call is not None:
    _call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    _call.restype = ctypes.c_int


def begin_writing(fd: int, offset: int, length: int) -> None:
    """Let the disk begin with these bytes of the file."""
    if _call is not None:
        _call(fd, offset, length, _BEGIN)
