"""Memory and processor time of a process and of all that it has started, as the kernel counts them."""

import os
from contextlib import suppress
from pathlib import Path

MB = 1e6
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _read(pid: int, name: str) -> bytes:
    """A file of a process, empty where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def threads_of(pid: int) -> list[Path]:
    """The folders of a process's threads."""
    with suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        for thread in threads_of(each):
            found += map(int, _read(each, f"task/{thread.name}/children").split())
    return found


def anonymous_mb(pid: int) -> float:
    """Resident memory of a tree without the pages of files.

    The kernel keeps this count. Proportional shares would have to be walked for, and meanwhile the process that is
    measured waits for every page that it allocates. Until a child begins a program it shares all pages with its parent.
    """
    own, num_pages = _read(pid, "cmdline"), 0
    for each in tree(pid):
        if each == pid or _read(each, "cmdline") != own:
            _, resident, shared, *_ = map(int, _read(each, "statm").split() or (0, 0, 0))
            num_pages += resident - shared
    return num_pages * PAGE_BYTES / MB


def peak_mb(pid: int) -> float:
    """The most resident memory that one process has had so far."""
    return _status_kib(pid, b"VmHWM:") * 1024 / MB


def resident_mib(pid: int, line: bytes = b"VmRSS:") -> float:
    """Resident memory of a tree now, or with `VmHWM:` the most so far."""
    return sum(_status_kib(each, line) for each in tree(pid)) / 1024


def cpu_s(pid: int) -> float:
    """Processor time of a tree so far, in user code and in the kernel for it."""
    cells = [_read(each, "stat").rpartition(b")")[2].split() for each in tree(pid)]
    return sum(int(each[11]) + int(each[12]) for each in cells if each) / os.sysconf("SC_CLK_TCK")


def _status_kib(pid: int, name: bytes) -> int:
    return next((int(line.split()[1]) for line in _read(pid, "status").splitlines() if line.startswith(name)), 0)
