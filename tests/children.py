"""The processes that a process has started, by the kernel's list."""

from collections.abc import Iterator
from pathlib import Path


def num_importing(pid: int) -> int:
    """Processes that `pid` has spawned and that have begun to import what they need, of libraries too."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(_is_spawned(child) and "-packages/" in Path(f"/proc/{child}/maps").read_text() for child in children)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _is_spawned(pid: str) -> bool:
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of all processes below one, the nearest first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in map(int, children):
        yield child
        yield from descendants(child)


def words_of(pid: int) -> bytes:
    """Return the command line of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
