"""Servers of thirty kinds and twenty pairs of kinds: does each recording replay as its server was, without a flag?

    python -m workshop.served_kinds [NAME ...] [--speed 0.1] [--rate 2] [--requests 25] [--tries 2] [--at-once 3]
        [--any-error]

Each server is started with `blis serve` at --speed, gets its load, and is recorded. `blis calibrate` then replays the
recording with what the recording says of the server. Times on a slow server are long, so a busy machine adds little to
them. A kind above the bounds is tried again, and its best try counts, since a machine only adds to errors. A name
stands for every kind whose name contains it. Servers mostly wait, so three kinds are served at once: all take some
fifteen minutes on two idle cores. The last line is the verdict on all of them. Exit code 1 where an error is above its
bound, or a row is not replayed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from itertools import repeat
from pathlib import Path

import blis_sim
from blis_sim.options import BlisError
from blis_sim.testing import Server, serving
from traces import read_trace
from workshop.ending import refuse, run_command
from workshop.served_kinds.clients import BODIES, send
from workshop.served_kinds.kinds import KINDS, PAIRS, Kind
from workshop.served_kinds.loads import FLAGS, write_spec

TTFT_MAPE, E2E_MAPE = 0.03, 0.01
_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """How far the replay of a recording was off, and which rows it had."""

    ttft: float
    e2e: float
    num_rows: int
    num_compared: int
    statuses: Counter[str]

    @property
    def is_within(self) -> bool:
        """Whether errors are within the bounds, and every request that was answered in full was replayed."""
        return self.ttft <= TTFT_MAPE and self.e2e <= E2E_MAPE and self.num_compared >= self.statuses["ok"]

    def __str__(self) -> str:
        others = ", ".join(f"{count} {status}" for status, count in self.statuses.items() if status != "ok")
        rows = f"{self.num_compared} of {self.num_rows} requests" + (f" ({others})" if others else "")
        return f"TTFT {self.ttft:6.2%}  E2E {self.e2e:6.2%}  {rows}"


def main() -> int:
    """Serve, record and replay each kind, and print a line; exit code 1 where one is above a bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--speed", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second of the client")
    parser.add_argument("--requests", type=int, default=25)
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=3, help="kinds that are served at the same time")
    parser.add_argument("--any-error", action="store_true", help="exit code 0 whatever was found")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the recordings in this folder")
    given = parser.parse_args()
    chosen = {name: kind for name, kind in (KINDS | PAIRS).items() if _is_asked(name, given.names)}
    if not chosen:
        refuse(f"no kind is named {' or '.join(given.names)}, known are {', '.join(KINDS | PAIRS)}")
    above, began_s = [], time.monotonic()
    with ProcessPoolExecutor(given.at_once) as pool:
        for name, (found, said) in zip(chosen, pool.map(_best, chosen.items(), repeat(given)), strict=True):
            is_within = found is not None and found.is_within
            above += [] if is_within else [name]
            print(f"{'within' if is_within else 'ABOVE ':6}  {name:40} {found or said}", flush=True)
    bounds = f"TTFT {TTFT_MAPE:.0%} and E2E {E2E_MAPE:.0%}"
    minutes = (time.monotonic() - began_s) / 60
    others = f", not {', '.join(above)}" if above else ""
    print(f"{len(chosen) - len(above)} of {len(chosen)} kinds are within {bounds} after {minutes:.0f} min{others}")
    return 0 if given.any_error or not above else 1


def _best(named: tuple[str, Kind], given: argparse.Namespace) -> tuple[Found | None, str]:
    """Return what the best try of a kind found, and the error of one that failed."""
    found, said = None, ""
    for seed in range(given.tries):
        try:
            latest = tried(*named, given, seed + 1)
        except (BlisError, RuntimeError) as error:
            said = str(error)
            continue
        if found is None or (latest.is_within, -latest.ttft) > (found.is_within, -found.ttft):
            found = latest
        if found.is_within:
            break
    return found, said


def _is_asked(name: str, asked: list[str]) -> bool:
    return not asked or any(name == each or (each in name and each not in (*KINDS, *PAIRS)) for each in asked)


def tried(name: str, kind: Kind, given: argparse.Namespace, seed: int) -> Found:
    """Serve a kind, record its load and replay it. Raises BlisError or RuntimeError."""
    os.environ["VLLM_SERVER_DEV_MODE"] = "1" if kind.load in ("sleep", "pause") else "0"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.keep or temporary)
        prefix = folder / f"{name.replace(' ', '-')}-{seed}"
        rate = given.rate * kind.pace
        words = ("--speed", f"{given.speed * kind.pace:g}", "--host", "127.0.0.1", "--port", "0")
        with serving(["-m", "blis_sim.cli", "serve", *kind.serve, *words]) as running:
            if kind.load in BODIES:
                _send_through_proxy(running, kind, prefix, given, seed)
            else:
                spec = write_spec(folder, kind.load, seed, rate, given.requests)
                _run([*_observe(running, prefix), "--workload-spec", str(spec), *FLAGS.get(kind.load, ())], prefix)
        with redirect_stderr(StringIO()):  # the settings that the replay takes, 50 times
            errors = blis_sim.calibrate(f"{prefix}.yaml")
        rows = [row for row in read_trace(f"{prefix}.yaml").rows if not row.is_part]
    metrics = errors.metrics
    return Found(
        metrics["ttft"].mape,
        metrics["e2e"].mape,
        len(rows),
        metrics["ttft"].count,
        Counter("aborted" if row.finish_reason == "abort" else row.status for row in rows),
    )


def _observe(running: Server, prefix: Path) -> list[str]:
    return ["observe", "--url", running.url, "-o", str(prefix), "--overwrite", "--record-itl"]


def _run(words: list[str], prefix: Path) -> None:
    with Path(f"{prefix}.log").open("w") as log:
        code = subprocess.run([sys.executable, "-m", "blis_sim.cli", *words], stdout=log, stderr=log).returncode
    if code:
        raise RuntimeError(Path(f"{prefix}.log").read_text().strip().splitlines()[-1])


def _send_through_proxy(running: Server, kind: Kind, prefix: Path, given: argparse.Namespace, seed: int) -> None:
    """Send the load of a client through `blis observe --proxy`."""
    words = [*_observe(running, prefix), "--proxy", "0", "--proxy-host", "127.0.0.1"]
    log = Path(f"{prefix}.log")
    with log.open("w") as written:
        proxy = subprocess.Popen([sys.executable, "-m", "blis_sim.cli", *words], stdout=written, stderr=written)
        try:
            url = _address(proxy, log)
            send(url, running.url, kind.load, kind.serve[0], seed, given.rate * kind.pace, given.requests)
        finally:
            proxy.send_signal(signal.SIGINT)
            proxy.wait(_READY_S)


def _address(proxy: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and proxy.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("recording what passes through "):
                return line.split()[4]
        time.sleep(0.05)
    raise RuntimeError(f"the proxy did not start: {log.read_text()[-300:]}")


if __name__ == "__main__":
    run_command(main)
