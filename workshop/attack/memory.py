"""Memory of a process and of all that it has started, as the kernel counts it."""

import os
from contextlib import suppress
from pathlib import Path

MB = 1e6
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def anonymous_mb(pid: int) -> float:
    """Resident memory of a tree without the pages of files.

    The kernel keeps this count. Proportional shares would have to be walked for, and meanwhile the process that is
    measured waits for every page that it allocates.
    """
    own = _command(pid)
    counted = (each for each in tree(pid) if each == pid or _command(each) != own)
    return sum(map(_anonymous_pages, counted)) * PAGE_BYTES / MB


def _command(pid: int) -> bytes:
    """The command line of a process: until it begins a program, its parent's, with which it shares all pages."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _anonymous_pages(pid: int) -> int:
    with suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return int(resident) - int(shared)
    return 0


def peak_mb(pid: int) -> float:
    """The most resident memory that one process has had so far."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MB
    return 0.0
