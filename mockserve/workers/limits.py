"""What one job of a worker process may take, and the system calls that enforce it."""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
NICENESS = 5
"""How far a worker stands back behind the server for the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """The system counts whole seconds of CPU, so a job may get up to one more. `wall_s` is for a starved machine."""

    cpu_s: int = 1
    memory_bytes: int = 80 * MIB
    """What a job may allocate beyond the worker's own size."""
    kept_bytes: int = 16 * MIB
    """A worker that has grown by more than this ends after its job, which gives the memory back."""
    wall_s: float = 10.0


class MemoryAllowance:
    """The memory of this process from now on: at most `limits.memory_bytes` more than it has."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._most_bytes = _peak_bytes() + limits.kept_bytes
        set_soft_limit(resource.RLIMIT_AS, _address_space_bytes() + limits.memory_bytes)

    @property
    def is_used_up(self) -> bool:
        """Whether the process has grown so much that it should end."""
        return _peak_bytes() > self._most_bytes


def allow_cpu(limits: WorkerLimits) -> None:
    """End this process after so many more seconds of CPU."""
    set_soft_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + limits.cpu_s)


def set_soft_limit(kind: int, value: int) -> None:
    """Set a limit, but never above the one that the process was started under."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
