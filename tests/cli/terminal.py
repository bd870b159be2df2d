"""A program at a terminal, and the text typed into it."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 60.0
START = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
"""Make the terminal that of the session, for shells."""


@dataclass(slots=True)
class Terminal:
    """The near end of the terminal, and the output there that no test has waited for yet."""

    descriptor: int
    shown: str = ""

    def say(self, text: str) -> None:
        """Type."""
        os.write(self.descriptor, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until a text is shown, and forget all up to its end."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            readable, _, _ = select.select([self.descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{text!r} did not come, but {self.shown!r}"
            self.shown += os.read(self.descriptor, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]


@contextmanager
def typing_into(command: list[str], folder: Path) -> Iterator[Terminal]:
    """Start a program in a folder that is its home as well and where it finds other programs first."""
    near, far = pty.openpty()
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "TERM": "xterm", "LANG": "C.UTF-8", "COLUMNS": "120"}
    started = [sys.executable, "-c", START, *command]
    with subprocess.Popen(
        started, stdin=far, stdout=far, stderr=far, cwd=folder, env=environment, start_new_session=True
    ) as process:
        os.close(far)
        try:
            yield Terminal(near)
        finally:
            process.kill()
            os.close(near)
