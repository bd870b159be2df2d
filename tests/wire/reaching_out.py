"""Records the files and connections that a server opens while it answers requests."""

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVENTS = frozenset(
    {
        "open",
        "os.listdir",
        "os.scandir",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "subprocess.Popen",
        "sqlite3.connect",
    }
    | {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"}
)
"""Audit events of the interpreter for something opened outside of a process."""

PROJECT = str(Path(__file__).parents[2])
CODE = (PROJECT, *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, sys.base_prefix)
"""Where modules lie that are imported when they are needed, and the tables beside them."""

ABOUT_ITSELF = ("/proc/self/", os.devnull)
"""Files that a metrics page and a worker process read of their own process."""


class _Watch:
    """Records the files and connections opened by threads other than the test's, while `notes` is set."""

    def __init__(self) -> None:
        self.is_installed = False
        self.notes: list[str] | None = None
        self.allowed: tuple[str, ...] = ()

    def record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.notes is None or event not in EVENTS or threading.current_thread() is threading.main_thread():
            return
        if not _is_own_business(event, arguments, self.allowed):
            self.notes.append(f"{event} {arguments!r:.200}")


def _is_own_business(event: str, arguments: tuple[Any, ...], allowed: tuple[str, ...]) -> bool:
    """Whether an event is the start of a worker process, or the reading of a file of the server's own."""
    if event == "subprocess.Popen":
        return bool(arguments[0] == sys.executable)
    path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else None
    return isinstance(path, str) and path.startswith((*CODE, *ABOUT_ITSELF, *allowed))


_WATCH = _Watch()  # a hook of the interpreter cannot be taken back


@contextmanager
def noted_openings(*allowed: Path) -> Iterator[list[str]]:
    """Files and connections that the threads of servers open within the block, except in the allowed folders."""
    if not _WATCH.is_installed:
        sys.addaudithook(_WATCH.record)
        _WATCH.is_installed = True
    _WATCH.notes, _WATCH.allowed = [], tuple(map(str, allowed))
    try:
        yield _WATCH.notes
    finally:
        _WATCH.notes = None


def note_openings_in(file: str) -> None:
    """Append a line to a file for each file or connection that this process opens, except files of its own."""
    into = os.open(file, os.O_WRONLY | os.O_APPEND)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and not _is_own_business(event, arguments, ()):
            os.write(into, f"{event} {arguments!r:.200}\n".encode())

    sys.addaudithook(note)
