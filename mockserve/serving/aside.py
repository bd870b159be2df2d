"""Work beside the event loop: memory for large bodies, costly demands in worker processes, long work on threads.

A thread that computes gives the interpreter away when the loop asks for it, which takes `SWITCH_INTERVAL_S` at most
unless the thread is within one call into C. Long calls into C must be cut into pieces where they are made.
"""

import asyncio
import ctypes
import gc
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from queue import SimpleQueue
from threading import Thread, local
from typing import Any, ParamSpec, TypeVar

from mockserve.generation.writing import too_big
from mockserve.protocol.errors import ApiError
from mockserve.serving.lifecycle import OpenReplies, too_busy
from mockserve.serving.worker_pool import (
    OverLimitError,
    PoolBusyError,
    WorkerKilledError,
    WorkerNotReadyError,
    WorkerPool,
)
from mockserve.workers import Job

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


MOST_RAW_BYTES = 256 << 20
MOST_VALUE_BYTES = 512 << 20


class Room:
    """Room for `most_bytes`, given in the order of asking. Whatever is larger than all of it comes alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, num_bytes: int) -> None:
        """Return when there is room."""
        if not self._waiting and self._fits(num_bytes):
            self._taken_bytes += num_bytes
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.give_back(num_bytes)
            raise

    def give_back(self, num_bytes: int) -> None:
        """Release so many bytes of the room, for waiting bodies."""
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


class BodyRoom:
    """Room for bodies as they came, and for what is made of them.

    A request that waits for the second kind has its room of the first, and never waits for the first kind afterwards,
    so that requests cannot wait for each other.
    """

    def __init__(self) -> None:
        self.raw = Room(MOST_RAW_BYTES)
        self.values = Room(MOST_VALUE_BYTES)


@dataclass(slots=True)
class RoomTaken:
    """The share of one request in `BodyRoom`."""

    room: BodyRoom
    raw_bytes: int = 0
    value_bytes: int = 0

    async def take_raw(self, num_bytes: int) -> None:
        """Return when there is room for a body."""
        await self.room.raw.take(num_bytes)
        self.raw_bytes += num_bytes

    def keep_raw(self, num_bytes: int) -> None:
        """Release what was taken beyond this."""
        self.room.raw.give_back(self.raw_bytes - num_bytes)
        self.raw_bytes = num_bytes

    async def take_values(self, num_bytes: int) -> None:
        """Return when there is room for what a body becomes."""
        await self.room.values.take(num_bytes)
        self.value_bytes += num_bytes

    def leave(self) -> None:
        """Release all of it."""
        self.room.raw.give_back(self.raw_bytes)
        self.room.values.give_back(self.value_bytes)
        self.raw_bytes = self.value_bytes = 0


def no_worker() -> ApiError:
    """The answer to a demand for which no worker process can be started."""
    message = "No process could be started for the request. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


def worker_killed() -> ApiError:
    """The error for a demand whose worker processes were killed by something outside of the server."""
    message = "The process for the request was killed. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

MODULES = ("mockserve.generation.structured_outputs.validation", "mockserve.generation.writing", "llguidance")
"""Modules that the jobs of a server need."""

SWITCH_INTERVAL_S = 0.0005
"""Seconds that the event loop waits for the interpreter at most."""

MANY_OBJECTS = 50_000
"""New objects before the garbage collector runs."""

LARGE_BYTES = 1 << 20
"""Work on larger bodies has a thread of its own, so that long prompts do not wait for abuse."""


class _Here(local):
    """The kind of the present thread: a thread for long work has the event loop that it works for."""

    loop: asyncio.AbstractEventLoop | None = None


_here = _Here()


class Aside:
    """One server's worker processes, and two threads: one for usual long work, one for huge work.

    None of them exists before it has something to do, and each does one thing at a time.

    The collector of cyclic garbage rests while a thread works, and never looks at what large work has made: that is
    millions of objects, and one look at them would stop the event loop for a tenth of a second and more. Results are
    freed when nothing refers to them any more, as all objects are.
    """

    def __init__(self, answering: OpenReplies | None = None, pool: WorkerPool | None = None) -> None:
        """`answering` counts what is under way here as a reply that is open."""
        self._answering = answering or OpenReplies()
        self.pool = pool or WorkerPool(preloaded=MODULES)
        self._long = _Worker("long work")
        self._huge = _Worker("huge work", return_free_pages)
        self._num_open = 0

    async def done(self, job: Job[T]) -> T:
        """The result of a job, made in place if it is small. Raises ApiError for one over the limits."""
        if job.is_small:
            return job.done()
        if _here.loop is not None:
            # Processes are the loop's to talk to, and this thread has nothing else to do.
            return asyncio.run_coroutine_threadsafe(self._done_by_process(job), _here.loop).result()
        return await self._done_by_process(job)

    def done_from_thread(self, job: Job[T], refusal: ApiError) -> T:
        """The result of a job that a thread for long work has for a worker process.

        Raises `refusal` for a job over the limits.
        """
        assert _here.loop is not None
        return asyncio.run_coroutine_threadsafe(self._by_process(job, refusal), _here.loop).result()

    async def _done_by_process(self, job: Job[T]) -> T:
        with self._answering:
            return await self._by_process(job, too_big())

    async def _by_process(self, job: Job[T], refusal: ApiError) -> T:
        try:
            return await self.pool.run(job.function, *job.arguments)
        except (OverLimitError, RecursionError):
            raise refusal from None
        except PoolBusyError:
            raise too_busy("max_num_queued_reqs") from None
        except WorkerNotReadyError as error:
            _logger.warning("%s", error)
            raise no_worker() from None
        except WorkerKilledError as error:
            _logger.warning("%s", error)
            raise worker_killed() from None

    async def in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of a function that may take longer than the event loop can wait."""
        if _here.loop is not None:
            return work(*arguments, **named)
        return await self.run(False, work, *arguments, **named)

    async def run(self, is_huge: bool, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of `work`, done on a thread. Work that has not begun when its caller is cancelled is dropped."""
        worker = self._huge if is_huge else self._long
        self._begin()
        try:
            with self._answering:
                return await worker.run(partial(copy_context().run, work, *arguments, **named))
        finally:
            self._end()

    def close(self) -> None:
        """End the worker processes, and the threads once their present jobs have ended."""
        self.pool.close()
        self._long.close()
        self._huge.close()

    async def wait_closed(self) -> None:
        """Return when nothing of the worker processes is left in the event loop, after `close`."""
        await self.pool.wait_closed()

    def _begin(self) -> None:
        self._num_open += 1
        if self._num_open == 1:
            gc.disable()

    def _end(self) -> None:
        self._num_open -= 1
        if gc.get_count()[0] > MANY_OBJECTS:
            gc.freeze()
        if not self._num_open:
            gc.enable()


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a thread for long work, where it has nothing to wait for but turns."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result


class _Worker:
    """One thread, which begins with its first job, and calls `tidy` when none is left to do."""

    def __init__(self, name: str, tidy: Callable[[], None] | None = None) -> None:
        self._name = name
        self._tidy = tidy
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._has_begun = False

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._begin()
        self._jobs.put((done, work))
        try:
            return await done
        finally:
            del done  # whose error has a traceback that refers to this frame

    def close(self) -> None:
        if self._has_begun:
            self._has_begun = False  # a job that comes nevertheless begins a new thread
            self._jobs.put(None)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(*job)
            del job
            if self._tidy is not None and self._jobs.empty():
                self._tidy()


def _do(done: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    """Do one job and hand its result to the loop, unless the loop has ended."""
    if done.cancelled():
        return
    loop = _here.loop = done.get_loop()
    found, failure = _outcome(work)
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, done, found, failure)


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """The result of `work`, or its error.

    An error must not be part of a cycle of references, which a frozen collector would never free: it has no frame in
    its traceback that refers to it. A refusal has no traceback at all, for the frames hold what is large.
    """
    try:
        return work(), None
    except ApiError as error:
        error.__traceback__ = error.__context__ = None
        return None, error
    except BaseException as error:  # noqa: BLE001  (whatever it is, its place is with the caller)
        return None, error


def _settle(done: asyncio.Future[Any], found: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(found)
    else:
        done.set_exception(failure)
