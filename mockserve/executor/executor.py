"""Work beside the event loop: memory for large bodies, costly demands in worker processes, long work on threads.

A computing thread releases the GIL for the event loop within `SWITCH_INTERVAL_S`, except during a call into C. Long
calls into C must be split by the caller.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread, local
from typing import Any, ParamSpec, TypeVar

from mockserve.executor.memory import return_free_pages
from mockserve.executor.worker import Job
from mockserve.executor.worker_pool import (
    OverLimitError,
    PoolBusyError,
    WorkerKilledError,
    WorkerNotReadyError,
    WorkerPool,
)
from mockserve.generation.writing import grammar_too_big
from mockserve.protocol.errors import ApiError, too_busy


def no_worker() -> ApiError:
    """Return the error for a job for which no worker process could be started."""
    message = "No process could be started for the request. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


def worker_killed() -> ApiError:
    """Return the error for a job whose worker processes were killed from outside of the server."""
    message = "The process for the request was killed. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

MODULES = ("mockserve.generation.structured_outputs.validation", "mockserve.generation.writing", "llguidance")
"""Modules that worker processes import before their first job."""

SWITCH_INTERVAL_S = 0.0005
"""Longest wait of the event loop for the GIL."""

MANY_OBJECTS = 50_000
"""New objects before the garbage collector runs."""

LARGE_BYTES = 1 << 20
"""Work on larger bodies runs on a separate thread, so that usual long prompts do not wait for hostile ones."""


class _ThreadState(local):
    """Thread-local state: on a thread for long work, the event loop that receives the result."""

    loop: asyncio.AbstractEventLoop | None = None


_thread_state = _ThreadState()


class OffloadExecutor:
    """Runs work outside of the event loop: in worker processes, on a thread for long work, on a thread for huge work.

    Each thread and process starts with its first job and runs one job at a time.

    The cyclic garbage collector is disabled while a thread works, and objects made by large work are frozen. A scan of
    millions of objects would stop the event loop for a tenth of a second. Reference counting frees results.
    """

    def __init__(self, answering: AbstractContextManager[None] | None = None, pool: WorkerPool | None = None) -> None:
        """`answering` counts work in progress as open replies."""
        self._answering = nullcontext() if answering is None else answering
        self.pool = pool or WorkerPool(preloaded=MODULES)
        self._long = _Worker("long work")
        self._huge = _Worker("huge work", return_free_pages)
        self._num_open = 0

    async def done(self, job: Job[T]) -> T:
        """Return the result of a job; a small job runs in place. Raises ApiError for a job over the limits."""
        if job.is_small:
            return job.done()
        if _thread_state.loop is not None:
            # Only the event loop may use the worker processes, and this thread may block.
            return asyncio.run_coroutine_threadsafe(self._run_in_process(job), _thread_state.loop).result()
        return await self._run_in_process(job)

    def run_from_thread(self, job: Job[T], refusal: ApiError) -> T:
        """Run a job in a worker process from a thread for long work, and return its result.

        Raises `refusal` for a job over the limits.
        """
        assert _thread_state.loop is not None
        return asyncio.run_coroutine_threadsafe(self._submit_to_pool(job, refusal), _thread_state.loop).result()

    async def _run_in_process(self, job: Job[T]) -> T:
        with self._answering:
            return await self._submit_to_pool(job, grammar_too_big())

    async def _submit_to_pool(self, job: Job[T], refusal: ApiError) -> T:
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
        """Run a function that would block the event loop on a thread, and return its result."""
        if _thread_state.loop is not None:
            return work(*arguments, **named)
        return await self.run(False, work, *arguments, **named)

    async def run(self, is_huge: bool, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `work` on a thread and return its result. A cancelled caller drops work that has not begun."""
        worker = self._huge if is_huge else self._long
        self._begin()
        try:
            with self._answering:
                return await worker.run(partial(copy_context().run, work, *arguments, **named))
        finally:
            self._work_ended()

    def close(self) -> None:
        """End the worker processes, and the threads once their present jobs have ended."""
        self.pool.close()
        self._long.close()
        self._huge.close()

    async def wait_closed(self) -> None:
        """Return when the event loop has closed all sockets of the worker processes, after `close`."""
        await self.pool.wait_closed()

    def _begin(self) -> None:
        self._num_open += 1
        if self._num_open == 1:
            gc.disable()

    def _work_ended(self) -> None:
        self._num_open -= 1
        if gc.get_count()[0] > MANY_OBJECTS:
            gc.freeze()
        if not self._num_open:
            gc.enable()


def run_to_completion(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a thread for long work, where it awaits nothing but turns of the event loop."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result


class _Worker:
    """One thread, started with its first job. It calls `on_idle` when its queue is empty."""

    def __init__(self, name: str, on_idle: Callable[[], None] | None = None) -> None:
        self._name = name
        self._on_idle = on_idle
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
            del done  # its error has a traceback that refers to this frame

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
            _run_one(*job)
            del job
            if self._on_idle is not None and self._jobs.empty():
                self._on_idle()


def _run_one(done: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    """Run one job and pass its result to the loop, unless the loop is closed."""
    if done.cancelled():
        return
    loop = _thread_state.loop = done.get_loop()
    found, failure = _result_of(work)
    if not loop.is_closed():
        loop.call_soon_threadsafe(_finish_future, done, found, failure)


def _result_of(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """The result of `work`, or its error.

    An error must not be part of a reference cycle, since the disabled collector would never free it. No frame in its
    traceback refers to the error. An ApiError gets no traceback at all, since its frames refer to large objects.
    """
    try:
        return work(), None
    except ApiError as error:
        error.__traceback__ = error.__context__ = None
        return None, error
    except BaseException as error:  # noqa: BLE001  (whatever it is, its place is with the caller)
        return None, error


def _finish_future(done: asyncio.Future[Any], found: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(found)
    else:
        done.set_exception(failure)
