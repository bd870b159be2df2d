"""Work for worker processes: a job, its limits, and its bytes on the socket between server and worker."""

import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_HEAD = struct.Struct("<Q")
_LAST = 1 << 63
"""Marks the last reply of a worker, which ends itself after it."""

READY = _HEAD.pack(0)
"""The message of a worker that can take jobs."""


def frame(data: bytes, is_last: bool = False) -> bytes:
    """`data` with its head."""
    return _HEAD.pack(len(data) | (_LAST if is_last else 0)) + data


def size_of(head: bytes) -> tuple[int, bool]:
    """Return the number of bytes that follow a head, and whether they are the last."""
    (value,) = _HEAD.unpack(head)
    return value & ~_LAST, bool(value & _LAST)


def read_exactly(end: socket.socket, num_bytes: int) -> bytes:
    """The next bytes of a blocking socket. Raises EOFError when it closes before they have come."""
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
"""The exit status of a worker process whose job needed more memory than allowed."""

_CRASHES = frozenset({signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL})
"""Signals by which a job ends its own process: of the CPU limit, and of native code without memory or stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """The system counts whole seconds of CPU, so a job may get up to one more. `wall_s` is for a starved machine."""

    cpu_s: int = 1
    memory_bytes: int = 64 * MIB
    """Memory that a job may allocate beyond the worker's own size.

    Enough for llguidance's checks of 2,500 definitions, 8,000 properties or an enum of 40,000 values.
    """
    kept_bytes: int = 16 * MIB
    """A worker that has grown by more than this ends after its job, which gives the memory back."""
    wall_s: float = 10.0


def is_own_end(status: int) -> bool:
    """Whether a job ended its process itself, by the exit status that `subprocess` gives.

    Otherwise something else did: the system when memory ran out, or an operator.
    """
    return status == OUT_OF_MEMORY or -status in _CRASHES


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job(Generic[Result]):
    """A function at the top level of a module, where a worker finds it, and its arguments.

    `is_small`: the job takes a few milliseconds at most, whatever its arguments are.
    """

    function: Callable[..., Result]
    arguments: tuple[Any, ...]
    is_small: bool

    def done(self) -> Result:
        """The result, made here and now."""
        return self.function(*self.arguments)
