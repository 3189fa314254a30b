"""Keeps the process small: memory that large batches needed once goes back to the operating system.

Owns the words with the allocators. Left alone, glibc raises its limits with every large array it has seen
and then keeps a hundred megabytes in the heaps of our threads, which looks like growth with the backlog and
is none. Elsewhere than on glibc these calls do nothing.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

from tidemill.core.limits import MIB

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Arrays this large get pages of their own, which go when the array goes. 64 Ki entries stay below.
_OWN_PAGES_BYTES = 4 * MIB
_FREE_BYTES_MAX = 16 * MIB


def keep_memory_flat() -> None:
    """Fix the allocator's limits for this process; harmless to repeat."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES_MAX)


def give_back_memory() -> None:
    """Return free memory of the C and Arrow allocators; takes some milliseconds, without the GIL."""
    pa.default_memory_pool().release_unused()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
