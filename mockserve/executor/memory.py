"""Memory of the process: budgets for bodies of clients, and return of freed blocks to the system."""

import asyncio
import ctypes
import sys
from collections import deque
from dataclasses import dataclass
from functools import cache

LARGE_BLOCK_BYTES = 1 << 20
"""Blocks above this size are mapped separately. Read buffers of the event loop are smaller and come from the heap."""

KEPT_FREE_BYTES = 4 << 20
"""Free bytes that malloc keeps at the end of the heap for later blocks."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of parameters in glibc's malloc.h."""


def return_large_blocks() -> None:
    """Set up the heap so that large blocks return to the system as soon as they are freed.

    By default glibc raises its threshold for large blocks to the largest size freed, at most 32 MiB. It also gives each
    thread a heap, which bodies of clients then fragment.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        libc.mallopt(_M_ARENA_MAX, 1)


def return_free_pages() -> None:
    """Return all heap pages without a block to the system, including pages between used ones."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, else None: other libraries have no such parameters."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


MOST_RAW_BYTES = 256 << 20
MOST_VALUE_BYTES = 512 << 20


class MemoryBudget:
    """A budget of bytes, granted first come, first served. A request above the whole budget is granted while unused."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, num_bytes: int) -> None:
        """Return once the bytes are granted."""
        if not self._waiting and self._fits(num_bytes):
            self._taken_bytes += num_bytes
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.release(num_bytes)
            raise

    def release(self, num_bytes: int) -> None:
        """Return bytes to the budget and grant waiting requests."""
        self._taken_bytes -= num_bytes
        while self._waiting:
            wanted_bytes, given = self._waiting[0]
            if not given.cancelled():
                if not self._fits(wanted_bytes):
                    return
                self._taken_bytes += wanted_bytes
                given.set_result(None)
            self._waiting.popleft()

    def _fits(self, num_bytes: int) -> bool:
        return not self._taken_bytes or self._taken_bytes + num_bytes <= self._most_bytes


class BodyMemory:
    """Memory budgets for received bodies, and for the Python values parsed from them.

    A request acquires memory for its body first and memory for values second, never in the other order, so that
    requests cannot deadlock.
    """

    def __init__(self) -> None:
        self.raw = MemoryBudget(MOST_RAW_BYTES)
        self.values = MemoryBudget(MOST_VALUE_BYTES)


@dataclass(slots=True)
class BodyReservation:
    """The share of one request in `BodyMemory`."""

    memory: BodyMemory
    raw_bytes: int = 0
    value_bytes: int = 0

    async def acquire_raw(self, num_bytes: int) -> None:
        """Return once memory for a body is granted."""
        await self.memory.raw.acquire(num_bytes)
        self.raw_bytes += num_bytes

    def shrink_raw(self, num_bytes: int) -> None:
        """Release the acquired memory beyond `num_bytes`."""
        self.memory.raw.release(self.raw_bytes - num_bytes)
        self.raw_bytes = num_bytes

    async def acquire_values(self, num_bytes: int) -> None:
        """Return once memory for the parsed values is granted."""
        await self.memory.values.acquire(num_bytes)
        self.value_bytes += num_bytes

    def release_all(self) -> None:
        """Release all memory of the request."""
        self.memory.raw.release(self.raw_bytes)
        self.memory.values.release(self.value_bytes)
        self.raw_bytes = self.value_bytes = 0
