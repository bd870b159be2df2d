"""Worker processes: jobs, their limits, messages on the socket, and the loop that runs one job at a time."""

import os
import pickle
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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


def work_until_closed(end: "Connection[bytes, bytes]", limits: WorkerLimits, preloaded: Sequence[str]) -> None:
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
    end.send_bytes(b"")  # ready for jobs
    with suppress(MemoryError):
        while True:
            job = jobs.get()
            allow_cpu(limits)
            end.send_bytes(_job_reply(job, memory))
            del job
    os._exit(OUT_OF_MEMORY)  # the state of the process is undefined


def _read_jobs(end: "Connection[bytes, bytes]", jobs: "SimpleQueue[bytes]") -> None:
    """Queue received jobs. The process exits when the connection closes, also in the middle of a job."""
    with suppress(OSError, EOFError):
        try:
            while True:
                jobs.put(end.recv_bytes())
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
    os._exit(0)


def _job_reply(job: bytes, memory: MemoryAllowance) -> bytes:
    """Run a job. Returns whether it is the last one of this process, its success, and its result or error, pickled.

    A panicking Rust library raises a `BaseException` and must not be used afterwards.
    """
    try:
        function, arguments = pickle.loads(job)
        found, is_done, is_panic = function(*arguments), True, False
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (the server raises it)
        found, is_done, is_panic = error, False, False
    except BaseException as error:  # noqa: BLE001  (the server raises it as an Exception)
        found, is_done, is_panic = _named(error), False, True
    try:
        reply = pickle.dumps((is_panic or memory.is_used_up, is_done, found), pickle.HIGHEST_PROTOCOL)
        if not is_done:
            pickle.loads(reply)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (an error or a result that does not survive pickling)
        return pickle.dumps((is_panic, False, _named(error if is_done else found)))
    return reply


def _named(error: BaseException) -> RuntimeError:
    """Return an error that the server can unpickle."""
    return RuntimeError(f"{type(error).__name__}: {error}")
