"""The servers that are measured: how each is started for a given pace, and what it cost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60.0
MODEL = "qwen/qwen3-14b"


@dataclass(frozen=True, slots=True)
class Pace:
    """Modelled times of a reply, zero for as fast as can be, and its tokens."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    num_tokens: int = 1

    @property
    def is_fastest(self) -> bool:
        """Whether there are no times."""
        return not self.ttft_ms and not self.itl_ms


@dataclass(frozen=True, slots=True)
class Peer:
    """A server by name, with the command line that starts it at a pace on a port."""

    name: str
    command: "tuple[str, ...]"
    pace_flags: "tuple[str, str] | None" = ("--ttft-ms", "--itl-ms")
    """None for a server whose pace is in its command."""
    fixed_flags: "tuple[str, ...]" = ()
    max_flags: "tuple[str, ...]" = ()
    """For a pace of zero, instead of the two times."""
    tokens_flag: str = ""
    """Flag for the number of tokens of a server that ignores the length in requests."""

    def arguments(self, port: int, pace: Pace) -> list[str]:
        """The whole command line."""
        times: list[str] = []
        if self.pace_flags is not None:
            times = [self.pace_flags[0], str(pace.ttft_ms), self.pace_flags[1], str(pace.itl_ms)]
        if pace.is_fastest and self.max_flags:
            times = list(self.max_flags)
        if self.tokens_flag:
            times += [self.tokens_flag, str(pace.num_tokens)]
        return [*self.command, "--port", str(port), *self.fixed_flags, *times]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens."""

    port: int
    pid: int


TIMES = ("--time-to-first-token-ms", "--inter-token-latency-ms")


def blis(name: str, max_flags: Sequence[str], *flags: str, pace_flags: tuple[str, str] | None = TIMES) -> Peer:
    """`blis serve` of this environment."""
    return Peer(
        name=name,
        command=(str(Path(sys.executable).with_name("blis")), "serve", MODEL, "--host", "127.0.0.1"),
        pace_flags=pace_flags,
        fixed_flags=("--max-num-seqs", "1024", "--max-model-len", "4096", *flags),
        max_flags=tuple(max_flags),
    )


def reference() -> Peer:
    """The plain aiohttp handler."""
    return Peer("aiohttp + uvloop", (sys.executable, "-m", "workshop.server_load.reference"))


def guidellm() -> Peer | str:
    """guidellm's mock server, or why there is none."""
    found = os.environ.get("GUIDELLM") or shutil.which("guidellm")
    if not found:
        return "guidellm is not installed (nor does GUIDELLM name its executable)"
    flags = ("--host", "127.0.0.1", "--model", MODEL)
    return Peer("guidellm", (found, "mock-server"), fixed_flags=flags, tokens_flag="--output-tokens")


@contextmanager
def running(peer: Peer, pace: Pace, core: int | None) -> Iterator[Running]:
    """The peer, listening, on one core; killed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        peer.arguments(port, pace), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        _wait_for(process, port, peer.name)
        yield Running(port, process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    give_up_at_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at_s:
        if process.poll() is not None:
            raise SystemExit(f"{name} ended with {process.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{name} does not listen after {START_TIMEOUT_S:.0f} s")
