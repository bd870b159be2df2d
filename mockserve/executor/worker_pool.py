"""The server's worker processes and their queue."""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from mockserve.executor.worker import READY, WorkerLimits, frame, is_caused_by_job, parse_head

_PROGRAM = """
import pickle, socket, sys
fd, path, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path[:] = pickle.loads(bytes.fromhex(path))
from mockserve.executor.worker import work_until_closed
work_until_closed(socket.socket(fileno=fd), *pickle.loads(bytes.fromhex(job)))
"""
"""The program of a worker, which uses the server's module search path."""


class WorkerEndedError(Exception):
    """Raised when a job ended its worker process, by a limit or a crash of native code."""


class WorkerKilledError(Exception):
    """Raised when a worker process ended for a reason other than its job."""


class WorkerNotReadyError(Exception):
    """Raised when a worker process could not be started, or ended before it took a job."""


_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Worker:
    """A process that shares only one end of a socket pair with the server."""

    def __init__(self, limits: WorkerLimits, preloaded: Sequence[str]) -> None:
        """Start the process, which is ready after about 0.1 s. Raises WorkerNotReadyError if it cannot be started."""
        self._near, far = socket.socketpair()
        given = [pickle.dumps(each).hex() for each in (sys.path, (limits, tuple(preloaded)))]
        with far:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(far.fileno()), *given],
                    pass_fds=[far.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in a terminal must reach the server only
                )
            except OSError as error:
                self._near.close()
                raise WorkerNotReadyError(f"a worker process could not be started: {error}") from None
        self._writer: asyncio.StreamWriter | None = None
        self._streams = asyncio.create_task(self._connected())
        self.is_last = False
        """Whether the worker ends after its latest job."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the end of the process has been noticed."""
        starting = self._streams
        if not starting.done():
            return False
        streams = None if starting.cancelled() else starting.result()
        return streams is None or streams[0].at_eof()

    async def do(self, job: bytes) -> tuple[bool, Any]:
        """Run a job, a pickled function with its arguments. Returns whether it succeeded, and its result or error.

        Raises WorkerEndedError if the job ended the process. Raises WorkerKilledError or WorkerNotReadyError if the
        process ended for another reason, the latter before it took the job.
        """
        streams = await asyncio.shield(self._streams)
        if streams is None:
            status = await asyncio.to_thread(self._process.wait)
            raise WorkerNotReadyError(f"a worker process ended with status {status} before it was ready")
        reader, writer = streams
        try:
            writer.write(frame(job))
            await writer.drain()
            size, self.is_last = parse_head(await reader.readexactly(len(READY)))
            is_done, found = pickle.loads(await reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            status = await asyncio.to_thread(self._process.wait)
            if is_caused_by_job(status):
                raise WorkerEndedError from error
            raise WorkerKilledError(f"a worker process ended with status {status} in the middle of a job") from error
        return is_done, found

    async def _connected(self) -> _Streams | None:
        """Return the streams once the process takes jobs; None if it ends earlier."""
        self._near.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._near)
        try:
            await reader.readexactly(len(READY))
        except (OSError, asyncio.IncompleteReadError):
            return None
        return reader, self._writer

    def kill(self) -> None:
        """Kill the process, also in the middle of a job."""
        self._streams.cancel()
        if self._writer is None:
            self._near.close()
        else:
            self._writer.transport.abort()
        self._process.kill()

    def wait(self) -> None:
        """Wait, for milliseconds, until a killed process has ended."""
        self._process.wait()

    async def wait_closed(self) -> None:
        """Return when the event loop has closed the socket of a killed process."""
        await asyncio.wait([self._streams])
        await asyncio.sleep(0)  # a transport closes in a later turn of the loop than the one that aborts it
        await asyncio.sleep(0)


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
        self._gone: list[Worker] = []
        """Processes that were reaped by `close`."""
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
        self._gone.extend(self._workers)
        self._workers.clear()

    async def wait_closed(self) -> None:
        """Return when the event loop has closed all sockets of the workers, after `close`."""
        for worker in self._gone:
            await worker.wait_closed()
        self._gone.clear()

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
                found = await worker.do(job)
        except (WorkerEndedError, TimeoutError):
            self._replace(worker)
            raise OverLimitError from None
        except (WorkerNotReadyError, WorkerKilledError):
            self._end_worker(worker)
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
