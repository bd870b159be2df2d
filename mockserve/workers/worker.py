"""One worker process as the server has it."""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from mockserve.workers.framing import READY, frame, size_of
from mockserve.workers.limits import WorkerLimits, is_own_end

_PROGRAM = """
import pickle, socket, sys
fd, path, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path[:] = pickle.loads(bytes.fromhex(path))
from mockserve.workers.process import work_until_closed
work_until_closed(socket.socket(fileno=fd), *pickle.loads(bytes.fromhex(job)))
"""
"""The program of a worker: it finds modules where the server does."""


class WorkerEndedError(Exception):
    """A job ended its worker process, by a limit or a crash of native code."""


class WorkerKilledError(Exception):
    """Something other than its job ended a worker process."""


class WorkerNotReadyError(Exception):
    """A worker process could not be started, or ended before it took a job."""


_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Worker:
    """A process with nothing of the server's but one end of a socket pair."""

    def __init__(self, limits: WorkerLimits, preloaded: Sequence[str]) -> None:
        """Start the process, which takes a tenth of a second to be ready. Raises WorkerNotReadyError if it cannot."""
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
                    start_new_session=True,  # so that Ctrl-C in a terminal is the server's alone
                )
            except OSError as error:
                self._near.close()
                raise WorkerNotReadyError(f"a worker process could not be started: {error}") from None
        self._writer: asyncio.StreamWriter | None = None
        self._streams = asyncio.create_task(self._connected())
        self.is_last = False
        """Whether the worker ends after the job that it has done."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has closed its end, as far as is known."""
        starting = self._streams
        if not starting.done():
            return False
        streams = None if starting.cancelled() else starting.result()
        return streams is None or streams[0].at_eof()

    async def do(self, job: bytes) -> tuple[bool, Any]:
        """Whether a job, a pickled function with its arguments, could be done, and its result or its error.

        Raises WorkerEndedError when the job has ended the process, WorkerKilledError when something else has, and
        WorkerNotReadyError when the process ended before it could take the job.
        """
        streams = await asyncio.shield(self._streams)
        if streams is None:
            status = await asyncio.to_thread(self._process.wait)
            raise WorkerNotReadyError(f"a worker process ended with status {status} before it was ready")
        reader, writer = streams
        try:
            writer.write(frame(job))
            await writer.drain()
            size, self.is_last = size_of(await reader.readexactly(len(READY)))
            is_done, found = pickle.loads(await reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            status = await asyncio.to_thread(self._process.wait)
            if is_own_end(status):
                raise WorkerEndedError from error
            raise WorkerKilledError(f"a worker process ended with status {status} in the middle of a job") from error
        return is_done, found

    async def _connected(self) -> _Streams | None:
        """The streams to the process, once it takes jobs; None if it ends before that."""
        self._near.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._near)
        try:
            await reader.readexactly(len(READY))
        except (OSError, asyncio.IncompleteReadError):
            return None
        return reader, self._writer

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._streams.cancel()
        if self._writer is None:
            self._near.close()
        else:
            self._writer.transport.abort()
        self._process.kill()

    def wait(self) -> None:
        """Return when a process that was killed has gone, within milliseconds."""
        self._process.wait()

    async def wait_closed(self) -> None:
        """Return when the event loop has let go of the socket of a process that was killed."""
        await asyncio.wait([self._streams])
        await asyncio.sleep(0)  # a transport closes in a later turn of the loop than the one that aborts it
        await asyncio.sleep(0)
