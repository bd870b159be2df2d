"""A worker process: it holds itself to its limits, and takes jobs one at a time until its socket is closed."""

import os
import pickle
import resource
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue

from mockserve.workers.job import OUT_OF_MEMORY, READY, WorkerLimits, frame, read_exactly, size_of

_STATUS = Path("/proc/self/status")
"""File with the size of a process on Linux."""


class MemoryAllowance:
    """The memory of this process from now on: at most `limits.memory_bytes` more than it has."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._is_limited = _STATUS.exists()
        if self._is_limited:
            self._most_bytes = _status_bytes("VmHWM") + limits.kept_bytes
            set_soft_limit(resource.RLIMIT_AS, _status_bytes("VmSize") + limits.memory_bytes)

    @property
    def is_used_up(self) -> bool:
        """Whether the process has grown so much that it should end."""
        # The peak that resource.getrusage gives would be the server's, from before the process had its own memory.
        return self._is_limited and _status_bytes("VmHWM") > self._most_bytes


def allow_cpu(limits: WorkerLimits) -> None:
    """End this process after so many more seconds of CPU."""
    set_soft_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + limits.cpu_s)


def set_soft_limit(kind: int, value: int) -> None:
    """Set a limit, but never above the one that the process was started under."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


NICENESS = 5
"""Niceness of a worker, so that the server gets the processor first."""


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
    with suppress(MemoryError):
        while True:
            job = jobs.get()
            allow_cpu(limits)
            reply, is_panic = _reply(job)
            del job
            end.sendall(frame(reply, is_last=is_panic or memory.is_used_up))
    os._exit(OUT_OF_MEMORY)  # nothing can be relied on any more


def _read(end: socket.socket, jobs: "SimpleQueue[bytes]") -> None:
    """Queue what comes. The process ends with the connection, also in the middle of a job."""
    with suppress(OSError, EOFError):
        try:
            while True:
                size, _ = size_of(read_exactly(end, len(READY)))
                jobs.put(read_exactly(end, size))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
    os._exit(0)


def _reply(job: bytes) -> tuple[bytes, bool]:
    """Whether the job could be done, with its result or its error; and whether a library panicked.

    Libraries in Rust raise a `BaseException` when they panic, and cannot be relied on after that.
    """
    try:
        function, arguments = pickle.loads(job)
        return pickle.dumps((True, function(*arguments)), pickle.HIGHEST_PROTOCOL), False
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (the server raises it)
        return _pickled_error(error), False
    except BaseException as error:  # noqa: BLE001  (the server raises it as an Exception)
        return _failure(error), True


def _pickled_error(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001  (an error that does not survive pickling)
        return _failure(error)
    return pickled


def _failure(error: BaseException) -> bytes:
    """The reply for an error that the server cannot raise as it is."""
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")), pickle.HIGHEST_PROTOCOL)
