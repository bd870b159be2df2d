"""Processes of Python forked from one that has imported what `blis` imports: each start saves most of a second of CPU.

`Popen` and `run` take the place of those of `subprocess` where a test needs a process of ours, and not its start. They
take `[sys.executable, "-m", MODULE, ...]` or `[sys.executable, "-c", CODE, ...]`. A test of memory, of start-up, of
imports or of options of the interpreter needs a process of its own.
"""

import atexit
import gc
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
PRELOADED = (
    *("mockserve.server", "mockserve.listening", "mockserve.command", "observe.command", "observe.proxy.command"),
    *("replay.command", "replay.run_command", "calibrate.command", "blis_sim.cli.main"),
)
HEAD = struct.Struct("<I")
"""Size of a request, which the files come with."""
NUM_FILES = 4


class Start(NamedTuple):
    """Words, folder, environment and session of a process; its standard files and a pipe are sent beside."""

    words: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    starts_session: bool


class Popen(subprocess.Popen[Any]):
    """A process as `subprocess.Popen` has it, started by forking. It takes standard files, `cwd`, `env` and a session.

    A process between the two waits for it, and writes its number and later its status to a pipe.
    """

    def _execute_child(self, args: Any, *given: Any) -> None:
        """Take the place of the fork and exec of `subprocess`, which hands everything on by position."""
        _, preexec, _, pass_fds, cwd, env, _, _, shell, *pipes = given[:15]
        assert args[0] == sys.executable
        assert args[1] in ("-m", "-c")
        assert not any((preexec, pass_fds, shell))
        environment = dict(os.environ if env is None else env)
        start = Start(list(map(os.fspath, args[1:])), str(cwd or Path.cwd()), environment, bool(given[20]))
        files = [own if each == -1 else each for own, each in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._told, telling = os.pipe()
        try:
            _server().begin(start, [*files, telling])
        finally:
            os.close(telling)
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = int(os.read(self._told, 20))
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            return self._noted(os.WNOHANG)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As `os.waitpid`; the caller holds the lock."""
        import select

        if not select.select([self._told], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        status = int(os.read(self._told, 20))
        os.close(self._told)
        return self.pid, status

    def _noted(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run(
    words: Sequence[str | os.PathLike[str]],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class ForkServer:
    """The process that forks. It ends with this one."""

    def __init__(self) -> None:
        self._near, far = socket.socketpair()
        self._lock = threading.Lock()
        with far:
            code = "from tests.fork_server import main; main()"
            environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(far.fileno())],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=PROJECT,
            )
        self._near.settimeout(120)
        atexit.register(self._close)

    def begin(self, start: Start, files: Sequence[int]) -> None:
        """Start a process. Its number comes by the last of the files."""
        with self._lock:
            content = pickle.dumps(start)
            socket.send_fds(self._near, [HEAD.pack(len(content))], list(files))
            self._near.sendall(content)

    def _close(self) -> None:
        self._near.close()
        self._process.wait()


@cache
def _server() -> ForkServer:
    return ForkServer()


def main() -> None:
    """Fork for each request. Only in a forked process does `_next_start` return what to run."""
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        start = _next_start(requests)
    if start is not None:
        _become(start)


def _next_start(requests: socket.socket) -> Start | None:
    """Return a start in a process that is to run it; None when no more are to come."""
    while True:
        head, files, _, _ = socket.recv_fds(requests, HEAD.size, NUM_FILES)
        if not head:
            return None
        (num_bytes,) = HEAD.unpack(head)
        data = requests.recv(num_bytes, socket.MSG_WAITALL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork():
            for each in files:
                os.close(each)
            continue
        *standard, telling = files
        if pid := os.fork():
            _tell_of(pid, standard, telling)
        requests.detach()
        for place, file in enumerate(standard):
            os.dup2(file, place)
        os.closerange(3, max(files) + 1)
        start: Start = pickle.loads(data)
        return start


def _tell_of(pid: int, standard: Sequence[int], telling: int) -> None:
    """Tell the number of a process, and its status once it has ended; then end."""
    for each in (*standard, 0, 1, 2):
        os.close(each)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(telling, b"%20d" % pid)
    with suppress(BrokenPipeError):
        os.write(telling, b"%20d" % os.waitpid(pid, 0)[1])
    os._exit(0)


def _become(start: Start) -> None:
    """Run what a fresh interpreter would run."""
    if start.starts_session:
        os.setsid()
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    for name, place in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        file = open(place, "r" if place == 0 else "w", buffering=-1 if place < 2 else 1, closefd=False)  # noqa: SIM115
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    kind, what, *arguments = start.words
    sys.path[:] = [
        start.folder,
        *filter(None, start.environment.get("PYTHONPATH", "").split(os.pathsep)),
        *sys.path[1:],
    ]
    if kind == "-m":
        sys.argv[:] = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = ["-c", *arguments]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
