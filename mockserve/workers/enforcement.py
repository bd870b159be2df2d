"""The system calls by which a worker process holds itself to its limits."""

import resource
import time
from pathlib import Path

from mockserve.workers.limits import WorkerLimits

_STATUS = Path("/proc/self/status")
"""Where Linux says how large a process is. Elsewhere memory is not limited."""


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
