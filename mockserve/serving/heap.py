"""The heap of the C library, which keeps memory that was freed: what large bodies had returns to the system here."""

import ctypes
import sys
from functools import cache

LARGE_BLOCK_BYTES = 1 << 20
"""Larger blocks have pages of their own. Buffers that the event loop reads into are smaller and come from the heap."""

KEPT_FREE_BYTES = 4 << 20
"""Free bytes at the end of the heap that are kept for blocks to come."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of parameters in glibc's malloc.h."""


def return_large_blocks() -> None:
    """Set up the heap so that large blocks return to the system as soon as they are freed.

    glibc raises its own threshold for such blocks to the size of the largest one freed, 32 MiB at most, and gives
    threads heaps of their own; bodies of clients then leave holes behind that no later block fits in.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        libc.mallopt(_M_ARENA_MAX, 1)


def return_free_pages() -> None:
    """Return all pages of the heap without a block, also from between others."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library where it is glibc; others have no parameters."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
