"""One worker process as the server has it."""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from mockserve.workers.framing import READY, frame, size_of
from mockserve.workers.limits import WorkerLimits

_PROGRAM = """
import pickle, socket, sys
fd, path, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path[:] = pickle.loads(bytes.fromhex(path))
from mockserve.workers.process import work_until_closed
work_until_closed(socket.socket(fileno=fd), *pickle.loads(bytes.fromhex(job)))
"""
"""The program of a worker: it finds modules where the server does."""


class WorkerEndedError(Exception):
    """A worker process ended before its job did."""


class Worker:
    """A process with nothing of the server's but one end of a socket pair."""

    def __init__(self, limits: WorkerLimits, preloaded: Sequence[str]) -> None:
        """Start the process, which takes a tenth of a second to be ready."""
        self._near, far = socket.socketpair()
        given = [pickle.dumps(each).hex() for each in (sys.path, (limits, tuple(preloaded)))]
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(far.fileno()), *given],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C in a terminal is the server's alone
            )
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
        return starting.cancelled() or starting.exception() is not None or starting.result()[0].at_eof()

    async def do(self, job: bytes) -> tuple[bool, Any]:
        """Whether a job, a pickled function with its arguments, could be done, and its result or its error.

        Raises WorkerEndedError when a limit of the process has ended it, and RuntimeError when it could not start.
        """
        reader, writer = await asyncio.shield(self._streams)
        try:
            writer.write(frame(job))
            await writer.drain()
            size, self.is_last = size_of(await reader.readexactly(len(READY)))
            is_done, found = pickle.loads(await reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise WorkerEndedError from error
        return is_done, found

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams to the process, once it takes jobs."""
        self._near.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._near)
        try:
            await reader.readexactly(len(READY))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise RuntimeError("a worker process ended before it was ready") from error
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
