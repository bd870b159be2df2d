"""Memory of a process and of all that it has started, as the kernel counts it."""

from contextlib import suppress
from pathlib import Path

MB = 1e6


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def proportional_mb(pid: int) -> float:
    """Resident memory of a tree; pages that several processes share are divided among them."""
    return sum(_kib(f"/proc/{each}/smaps_rollup", "Pss:") for each in tree(pid)) * 1024 / MB


def peak_mb(pid: int) -> float:
    """The most resident memory that one process has had so far."""
    return _kib(f"/proc/{pid}/status", "VmHWM:") * 1024 / MB


def _kib(path: str, name: str) -> int:
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0
