"""A few worker processes and the queue before them."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from mockserve.workers.limits import WorkerLimits
from mockserve.workers.worker import Worker, WorkerEndedError, WorkerKilledError, WorkerNotReadyError

Result = TypeVar("Result")

NUM_WORKERS = 2
MOST_WAITING = 64
"""Jobs that may wait for a worker."""


class OverLimitError(Exception):
    """A job took more time or memory than it may, or crashed its process."""


class PoolBusyError(Exception):
    """Too many jobs wait."""


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
        """Jobs that a worker has."""
        self._places = asyncio.Semaphore(num_workers)
        self._idle: list[Worker] = []
        """Workers that have no job, some of them still starting."""
        self._workers: set[Worker] = set()
        """All processes that have not been waited for."""
        self._gone: list[Worker] = []
        """Processes that have been waited for when the pool was closed."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [each.pid for each in self._workers]

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What `function`, which must be a module's own, makes of `arguments`; or raise what it raises.

        Raises OverLimitError when a limit ends it, PoolBusyError when too many jobs wait, and WorkerNotReadyError or
        WorkerKilledError when two processes in a row end before they take it or are killed while they do it. A job that
        is cancelled ends at once, and its worker with it.
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
        """End all workers. Jobs that are under way raise OverLimitError."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
        self._gone.extend(self._workers)
        self._workers.clear()

    async def wait_closed(self) -> None:
        """Return when nothing of the workers is left in the event loop, after `close`."""
        for worker in self._gone:
            await worker.wait_closed()
        self._gone.clear()

    def _worker(self) -> Worker:
        """A worker without a job, the one that had one last: it may remember what it has made of the same input."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            self._end(worker)
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
                found = await worker.do(job)
        except (WorkerEndedError, TimeoutError):
            self._replace(worker)
            raise OverLimitError from None
        except (WorkerNotReadyError, WorkerKilledError):
            self._end(worker)
            raise
        except BaseException:
            self._replace(worker)
            raise
        if worker.is_last:
            self._replace(worker)
        else:
            self._idle.append(worker)
        return found

    def _replace(self, worker: Worker) -> None:
        self._end(worker)
        if not self._is_closed:
            with suppress(WorkerNotReadyError):  # a job that needs it tries again
                self._idle.insert(0, self._started())

    def _end(self, worker: Worker) -> None:
        worker.kill()
        if worker in self._workers and not self._is_closed:
            self._keep(asyncio.create_task(self._wait_for(worker)))

    async def _wait_for(self, worker: Worker) -> None:
        await asyncio.to_thread(worker.wait)
        self._workers.discard(worker)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
