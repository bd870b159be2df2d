"""System calls of a server process and of all that it starts, traced by the kernel while requests are sent."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.wire.reaching_out import ABOUT_ITSELF, CODE

_TRACER = ("strace", "-f", "-s", "300", "-e", "trace=%network,%file", "-e", "signal=none")
_CALL = re.compile(r"\d+ +(?P<name>\w+)\((?P<arguments>.*)")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPENING = ("socket", "connect", "bind", "listen")
_ABOUT_CONNECTIONS = frozenset(
    {"accept", "accept4", "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "shutdown"}
    | {"socketpair", "getsockname", "getpeername", "getsockopt", "setsockopt", *_OPENING}
)
_FIRST_TEXT_IS_THE_PATH = ("readlink", "readlinkat", "execve", "execveat")
"""Calls with texts that are results, or arguments of a program."""

_OF_THE_C_LIBRARY = ("/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu")
"""Files that memory allocation and a count of processors read."""


@dataclass(frozen=True, slots=True)
class SystemCall:
    """One call with its arguments; the result may be missing."""

    name: str
    arguments: str

    @property
    def paths(self) -> list[str]:
        """Files that the call names."""
        if self.name in _ABOUT_CONNECTIONS or self.name == "getcwd":
            return []
        texts = [each for each in _TEXT.findall(self.arguments) if each]
        return texts[:1] if self.name in _FIRST_TEXT_IS_THE_PATH else texts

    @property
    def opens_connection(self) -> bool:
        return self.name in _OPENING

    def __str__(self) -> str:
        return f"{self.name}({self.arguments}"


def can_trace() -> bool:
    """Whether strace is installed and may attach to processes of this user."""
    if shutil.which("strace") is None:
        return False
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            with _attached(process.pid, "/dev/null"):
                return True
        except PermissionError:
            return False
        finally:
            process.kill()


@contextmanager
def _attached(pid: int, log: str) -> Iterator[subprocess.Popen[str]]:
    """Raise PermissionError where strace may not attach."""
    with subprocess.Popen([*_TRACER, "-o", log, "-p", str(pid)], stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        if "attached" not in line:
            raise PermissionError(line)
        try:
            yield tracer
        finally:
            tracer.terminate()


@contextmanager
def traced(process: subprocess.Popen[str], log: Path) -> Iterator[None]:
    """Trace a process that is running until it has stopped, which the end of the block makes it do.

    The tracer writes a call to the log before the call begins.
    """
    with _attached(process.pid, str(log)) as tracer:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        tracer.wait(PATIENCE_S)


def calls_in(log: Path) -> list[SystemCall]:
    """All calls so far."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [SystemCall(found["name"], found["arguments"]) for line in lines if (found := _CALL.match(line))]


def reaching_out(calls: list[SystemCall], own: Collection[str]) -> list[str]:
    """Return calls that open a connection, or name a file that is neither code nor `own`, nor in a folder of `own`."""
    known = frozenset(own)
    folders = tuple(f"{each.rstrip('/')}/" for each in (*CODE, *ABOUT_ITSELF, *_OF_THE_C_LIBRARY, *own))

    def is_own(path: str) -> bool:
        return path in known or f"{path}/".startswith(folders)

    return [str(each) for each in calls if each.opens_connection or not all(map(is_own, each.paths))]
