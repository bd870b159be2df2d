"""Worker processes: jobs, their limits, messages on the socket, and the loop that runs one job at a time."""

import os
import pickle
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

_HEAD = struct.Struct("<Q")
_LAST = 1 << 63
"""Marks the last reply of a worker that then exits."""

READY = _HEAD.pack(0)
"""Message of a worker that is ready for jobs."""


def frame(data: bytes, is_last: bool = False) -> bytes:
    """Return `data` with its head."""
    return _HEAD.pack(len(data) | (_LAST if is_last else 0)) + data


def parse_head(head: bytes) -> tuple[int, bool]:
    """Return the number of bytes that follow a head, and whether they are the last."""
    (value,) = _HEAD.unpack(head)
    return value & ~_LAST, bool(value & _LAST)


def read_exactly(end: socket.socket, num_bytes: int) -> bytes:
    """Read `num_bytes` from a blocking socket. Raises EOFError if it closes earlier."""
    received = bytearray(num_bytes)
    view, at = memoryview(received), 0
    while at < num_bytes:
        count = end.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return bytes(received)


MIB = 2**20

OUT_OF_MEMORY = 99
"""Exit status of a worker process whose job exceeded the memory limit."""

_CRASHES = frozenset({signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL})
"""Signals by which a job ends its process: the CPU limit, and native code without memory or stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """The system counts whole seconds of CPU, so a job may get one second more. `wall_s` covers a starved machine."""

    cpu_s: int = 1
    memory_bytes: int = 64 * MIB
    """Memory that a job may allocate beyond the worker's own size.

    Enough for llguidance's checks of 2,500 definitions, 8,000 properties or an enum of 40,000 values.
    """
    max_growth_bytes: int = 16 * MIB
    """A worker that has grown by more than this exits after its job, which returns the memory to the system."""
    wall_s: float = 10.0


def is_caused_by_job(status: int) -> bool:
    """Whether an exit status of `subprocess` means that a job ended its process.

    Other causes are the system when memory runs out, or an operator.
    """
    return status == OUT_OF_MEMORY or -status in _CRASHES


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job(Generic[Result]):
    """A module-level function, which a worker can import, and its arguments.

    `is_small` means that the job takes a few milliseconds at most, whatever its arguments are.
    """

    function: Callable[..., Result]
    arguments: tuple[Any, ...]
    is_small: bool

    def done(self) -> Result:
        """Run the job in this process and return its result."""
        return self.function(*self.arguments)


_STATUS = Path("/proc/self/status")
"""File with the size of a process on Linux."""


class MemoryAllowance:
    """Limits this process to `limits.memory_bytes` more memory than it has at present."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._is_limited = _STATUS.exists()
        if self._is_limited:
            self._most_bytes = _status_bytes("VmHWM") + limits.max_growth_bytes
            set_soft_limit(resource.RLIMIT_AS, _status_bytes("VmSize") + limits.memory_bytes)

    @property
    def is_used_up(self) -> bool:
        """Whether the process has grown by more than `max_growth_bytes`."""
        # resource.getrusage would report the server's peak, from before this process had memory of its own.
        return self._is_limited and _status_bytes("VmHWM") > self._most_bytes


def allow_cpu(limits: WorkerLimits) -> None:
    """Limit this process to `limits.cpu_s` more seconds of CPU."""
    set_soft_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + limits.cpu_s)


def set_soft_limit(kind: int, value: int) -> None:
    """Set a soft limit, at most the present hard limit."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


NICENESS = 5
"""Niceness of a worker: the server has precedence."""


def work_until_closed(end: socket.socket, limits: WorkerLimits, preloaded: Sequence[str]) -> None:
    """Run the jobs received from `end`. `preloaded` are modules that jobs need."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal or service manager signals all processes at once
    for name in preloaded:
        import_module(name)
    os.nice(NICENESS)
    set_soft_limit(resource.RLIMIT_CORE, 0)
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_jobs, args=(end, jobs), daemon=True).start()
    memory = MemoryAllowance(limits)
    end.sendall(READY)
    with suppress(MemoryError):
        while True:
            job = jobs.get()
            allow_cpu(limits)
            reply, is_panic = _job_reply(job)
            del job
            end.sendall(frame(reply, is_last=is_panic or memory.is_used_up))
    os._exit(OUT_OF_MEMORY)  # the state of the process is undefined


def _read_jobs(end: socket.socket, jobs: "SimpleQueue[bytes]") -> None:
    """Queue received jobs. The process exits when the connection closes, also in the middle of a job."""
    with suppress(OSError, EOFError):
        try:
            while True:
                size, _ = parse_head(read_exactly(end, len(READY)))
                jobs.put(read_exactly(end, size))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
    os._exit(0)


def _job_reply(job: bytes) -> tuple[bytes, bool]:
    """Run a job. Returns the pickled success, result or error, and whether a library panicked.

    A panicking Rust library raises a `BaseException` and must not be used afterwards.
    """
    try:
        function, arguments = pickle.loads(job)
        return pickle.dumps((True, function(*arguments)), pickle.HIGHEST_PROTOCOL), False
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (the server raises it)
        return _pickled_error(error), False
    except BaseException as error:  # noqa: BLE001  (the server raises it as an Exception)
        return _failure_reply(error), True


def _pickled_error(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001  (an error that does not survive pickling)
        return _failure_reply(error)
    return pickled


def _failure_reply(error: BaseException) -> bytes:
    """Return the reply for an error that the server cannot unpickle."""
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")), pickle.HIGHEST_PROTOCOL)
