"""What one job of a worker process may take."""

import signal
from dataclasses import dataclass

MIB = 2**20

OUT_OF_MEMORY = 99
"""The exit status of a worker process whose job needed more memory than allowed."""

_CRASHES = frozenset({signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL})
"""Signals by which a job ends its own process: of the CPU limit, and of native code without memory or stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """The system counts whole seconds of CPU, so a job may get up to one more. `wall_s` is for a starved machine."""

    cpu_s: int = 1
    memory_bytes: int = 80 * MIB
    """What a job may allocate beyond the worker's own size."""
    kept_bytes: int = 16 * MIB
    """A worker that has grown by more than this ends after its job, which gives the memory back."""
    wall_s: float = 10.0


def is_own_end(status: int) -> bool:
    """Whether a job ended its process itself, by the exit status that `subprocess` gives.

    Otherwise something else did: the system when memory ran out, or an operator.
    """
    return status == OUT_OF_MEMORY or -status in _CRASHES
