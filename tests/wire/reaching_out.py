"""Notes which files and connections a server opens while it answers requests."""

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
"""What the interpreter reports when something outside of a process is opened."""

PROJECT = Path(__file__).parents[2]
CODE = (str(PROJECT), *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, sys.base_prefix)
"""Where modules lie that are imported when they are needed."""


@dataclass(slots=True)
class _Noting:
    """Where events of other threads than the test's go, if anywhere."""

    is_installed: bool = False
    lists: list[list[str]] = field(default_factory=list)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.lists or event not in EVENTS or threading.current_thread() is threading.main_thread():
            return
        if not _is_own_business(event, arguments):
            self.lists[-1].append(f"{event} {arguments!r:.200}")


def _is_own_business(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an event is the import of a module or the start of a worker process."""
    if event == "subprocess.Popen":
        return bool(arguments[0] == sys.executable)
    if event not in ("open", "os.listdir", "os.scandir"):
        return False
    path = arguments[0]
    if path == os.devnull:  # which a worker process gets for its input
        return True
    return (
        isinstance(path, str) and path.startswith(CODE) and (event != "open" or path.endswith((".py", ".pyc", ".so")))
    )


_NOTING = _Noting()  # a hook of the interpreter cannot be taken back


@contextmanager
def noted_openings() -> Iterator[list[str]]:
    """What the threads of servers open within the block."""
    if not _NOTING.is_installed:
        sys.addaudithook(_NOTING.note)
        _NOTING.is_installed = True
    noted: list[str] = []
    _NOTING.lists.append(noted)
    try:
        yield noted
    finally:
        _NOTING.lists.pop()


def note_openings_in(file: str) -> None:
    """Have this process add a line to a file for all that it opens but modules, and what it reads about itself."""
    into = os.open(file, os.O_WRONLY | os.O_APPEND)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and not _is_own_business(event, arguments) and arguments[0] != "/proc/self/status":
            os.write(into, f"{event} {arguments!r:.200}\n".encode())

    sys.addaudithook(note)
