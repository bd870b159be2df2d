"""A worker process: it takes jobs from a socket one at a time, and ends when the other end of the socket closes."""

import os
import pickle
import resource
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue

from mockserve.workers.enforcement import MemoryAllowance, allow_cpu, set_soft_limit
from mockserve.workers.framing import READY, frame, read_exactly, size_of
from mockserve.workers.limits import WorkerLimits

NICENESS = 5
"""How far a worker stands back behind the server for the processor."""


def work_until_closed(end: socket.socket, limits: WorkerLimits, preloaded: Sequence[str]) -> None:
    """Do the jobs that come over `end`. `preloaded` are modules that jobs need."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # which reach all processes of a terminal or a service at once
    for name in preloaded:
        import_module(name)
    os.nice(NICENESS)
    set_soft_limit(resource.RLIMIT_CORE, 0)
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(end, jobs), daemon=True).start()
    memory = MemoryAllowance(limits)
    end.sendall(READY)
    while True:
        job = jobs.get()
        allow_cpu(limits)
        reply = _reply(job)
        del job
        end.sendall(frame(reply, is_last=memory.is_used_up))


def _read(end: socket.socket, jobs: "SimpleQueue[bytes]") -> None:
    """Queue what comes. The process ends with the connection, also in the middle of a job."""
    with suppress(OSError, EOFError):
        while True:
            size, _ = size_of(read_exactly(end, len(READY)))
            jobs.put(read_exactly(end, size))
    os._exit(0)


def _reply(job: bytes) -> bytes:
    """Whether the job could be done, and its result or its error."""
    try:
        function, arguments = pickle.loads(job)
        return pickle.dumps((True, function(*arguments)), pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        os._exit(1)  # nothing can be relied on any more
    except Exception as error:  # noqa: BLE001  (the server raises it)
        return _pickled_error(error)


def _pickled_error(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001  (an error that does not survive pickling)
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")), pickle.HIGHEST_PROTOCOL)
    return pickled
