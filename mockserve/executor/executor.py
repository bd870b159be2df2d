"""Work beside the event loop: memory for large bodies, costly demands in worker processes, long work on threads.

A computing thread releases the GIL for the event loop within `SWITCH_INTERVAL_S`, except during a call into C. Long
calls into C must be split by the caller.
"""

import asyncio
import gc
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from multiprocessing import Pipe
from queue import SimpleQueue
from threading import Thread, local
from typing import Any, ParamSpec, TypeVar

from mockserve.executor.memory import return_free_pages
from mockserve.executor.worker import Job, WorkerLimits, is_caused_by_job
from mockserve.generation.writing import grammar_too_big
from mockserve.protocol.errors import ApiError, too_busy

_PROGRAM = """
import pickle, sys
from multiprocessing.connection import Connection
path, fd, *job = pickle.loads(bytes.fromhex(sys.argv[1]))
sys.path[:] = path
from mockserve.executor.worker import work_until_closed
work_until_closed(Connection(fd), *job)
"""
"""The program of a worker, which uses the server's module search path."""


class WorkerEndedError(Exception):
    """Raised when a job ended its worker process, by a limit or a crash of native code."""


class WorkerKilledError(Exception):
    """Raised when a worker process ended for a reason other than its job."""


class WorkerNotReadyError(Exception):
    """Raised when a worker process could not be started, or ended before it took a job."""


MOST_BYTES_AT_ONCE = 1 << 16
"""Largest job that a socket takes at once, without its reader."""


class Worker:
    """A process that shares only one end of a socket pair with the server."""

    def __init__(self, limits: WorkerLimits, preloaded: Sequence[str]) -> None:
        """Start the process, which is ready after about 0.1 s. Raises WorkerNotReadyError if it cannot be started."""
        self._near, far = Pipe()
        argument = pickle.dumps((sys.path, far.fileno(), limits, tuple(preloaded))).hex()
        with far:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, argument],
                    pass_fds=[far.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in a terminal must reach the server only
                )
            except OSError as error:
                self._near.close()
                raise WorkerNotReadyError(f"a worker process could not be started: {error}") from None
        self.pid = self._process.pid
        self._is_ready = False

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    async def do(self, job: bytes) -> bytes:
        """Run a job, a pickled function with its arguments, and return the reply of the process.

        Raises WorkerEndedError if the job ended the process. Raises WorkerKilledError or WorkerNotReadyError if the
        process ended for another reason, the latter before it took the job.
        """
        try:
            if not self._is_ready:
                await self._received()
                self._is_ready = True
            if len(job) > MOST_BYTES_AT_ONCE:
                await asyncio.to_thread(self._near.send_bytes, job)
            else:
                self._near.send_bytes(job)
            return await self._received()
        except (OSError, EOFError) as error:
            status = await asyncio.to_thread(self._process.wait)
            if not self._is_ready:
                message = f"a worker process ended with status {status} before it was ready"
                raise WorkerNotReadyError(message) from None
            if is_caused_by_job(status):
                raise WorkerEndedError from error
            raise WorkerKilledError(f"a worker process ended with status {status} in the middle of a job") from error

    async def _received(self) -> bytes:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._near.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._near.fileno())
        return self._near.recv_bytes()

    def kill(self) -> None:
        """Kill the process, also in the middle of a job."""
        self._process.kill()

    def wait(self) -> None:
        """Wait, for milliseconds, until a killed process has ended."""
        self._process.wait()


Result = TypeVar("Result")

NUM_WORKERS = 2
MOST_WAITING = 64
"""Jobs that may wait for a worker."""


class OverLimitError(Exception):
    """Raised when a job exceeded its time or memory limit, or crashed its process."""


class PoolBusyError(Exception):
    """Raised when too many jobs wait."""


class WorkerPool:
    """Runs functions in other processes. A worker is started when a job finds none idle, and then kept."""

    def __init__(
        self,
        num_workers: int = NUM_WORKERS,
        most_waiting: int = MOST_WAITING,
        limits: WorkerLimits | None = None,
        preloaded: Sequence[str] = (),
    ) -> None:
        """`preloaded` are modules that a worker imports before its first job."""
        self._limits = limits or WorkerLimits()
        self._preloaded = preloaded
        self._most_waiting = most_waiting
        self._num_waiting = 0
        self.num_running = 0
        """Jobs in progress."""
        self._places = asyncio.Semaphore(num_workers)
        self._idle: list[Worker] = []
        """Workers without a job, including starting ones."""
        self._workers: set[Worker] = set()
        """All processes that have not been reaped."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [each.pid for each in self._workers]

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a module-level `function` for `arguments`, or raise its error.

        Raises OverLimitError if a limit ends the job, and PoolBusyError if too many jobs wait. Raises
        WorkerNotReadyError or WorkerKilledError if two processes in a row end before the job, or during it. A cancelled
        job ends at once, together with its worker.
        """
        if self._num_waiting >= self._most_waiting:
            raise PoolBusyError
        self._num_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._num_waiting -= 1
        self.num_running += 1
        try:
            job = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
            is_done, found = await self._done(job)
        finally:
            self.num_running -= 1
            self._places.release()
        try:
            if not is_done:
                raise found
            result: Result = found
            return result
        finally:
            del found  # an error, whose traceback refers to this frame

    def close(self) -> None:
        """Kill all workers. Jobs in progress raise OverLimitError."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
        self._workers.clear()

    def _worker(self) -> Worker:
        """Return the idle worker of the latest job, since its caches may match equal input; else a new worker."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            self._end_worker(worker)
        return self._started()

    def _started(self) -> Worker:
        if self._is_closed:
            raise OverLimitError
        worker = Worker(self._limits, self._preloaded)
        self._workers.add(worker)
        return worker

    async def _done(self, job: bytes) -> tuple[bool, Any]:
        try:
            return await self._done_by(self._worker(), job)
        except (WorkerNotReadyError, WorkerKilledError):
            return await self._done_by(self._started(), job)

    async def _done_by(self, worker: Worker, job: bytes) -> tuple[bool, Any]:
        try:
            async with asyncio.timeout(self._limits.wall_s):
                reply = await worker.do(job)
        except (WorkerEndedError, TimeoutError):
            self._replace(worker)
            raise OverLimitError from None
        except (WorkerNotReadyError, WorkerKilledError):
            self._end_worker(worker)
            raise
        except BaseException:
            self._replace(worker)
            raise
        is_last, is_done, found = pickle.loads(reply)
        if is_last:
            self._replace(worker)
        else:
            self._idle.append(worker)
        return is_done, found

    def _replace(self, worker: Worker) -> None:
        self._end_worker(worker)
        if not self._is_closed:
            with suppress(WorkerNotReadyError):  # the next job starts a worker itself
                self._idle.insert(0, self._started())

    def _end_worker(self, worker: Worker) -> None:
        worker.kill()
        if worker in self._workers and not self._is_closed:
            task = asyncio.create_task(self._wait_for(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _wait_for(self, worker: Worker) -> None:
        await asyncio.to_thread(worker.wait)
        self._workers.discard(worker)


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
