"""The start-up of `blis` in one checkout, as ratios to that of another one.

    python -m workshop.startup TREE BASE [--pairs 20] [--case help --case replay --case serve]

Cases are `blis --help`, `blis replay` of 1,000 requests, and `blis serve` until /health answers. Runs of the two
checkouts alternate, so that a machine whose speed changes is as fast for both. A ratio is the median of the ratios of
all pairs. A checkout runs with the interpreter of its own `.venv` where it has one, else with this interpreter.
"""

import argparse
import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NUM_REQUESTS = 1_000
DEPLOYMENT = ("--model", "qwen/qwen3-14b", "--hardware", "H100")
CASES = ("help", "replay", "serve")
STARTED_S = 60
"""Most seconds until a server answers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one process, as its operating system counts it."""

    cpu_s: float
    memory_mib: float
    """Most memory that was resident at once."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """The costs of one case in two checkouts."""

    ours: Cost
    base: Cost
    """Medians of all runs."""
    cpu: float
    memory: float
    """Medians of the ratios of pairs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--case", choices=CASES, action="append", default=[])
    given = parser.parse_args(arguments)
    print("| case | CPU, ms | of base, ms | ratio | memory, MiB | of base, MiB | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in given.case or CASES:
            words = command(case, Path(folder), given.base)
            pairs = [(cost(given.tree, words), cost(given.base, words)) for _ in range(given.pairs + 1)]
            print(row(case, ratios(pairs[1:])), flush=True)  # the first pair compiles the modules and fills the caches
    return 0


def command(case: str, folder: Path, base: Path) -> list[str]:
    """Return the arguments of a case. The trace of a replay is of the base, whose files newer versions can read."""
    if case == "help":
        return ["--help"]
    if case == "serve":
        return ["serve", *DEPLOYMENT]
    trace = folder / "trace"
    written = ["run", *DEPLOYMENT, "--num-requests", str(NUM_REQUESTS), "--rate", "10", "--trace-output", str(trace)]
    subprocess.run(_process(base, written), cwd=base, env=_environment(), check=True, capture_output=True)
    return ["replay", f"{trace}.yaml", *DEPLOYMENT]


def cost(tree: Path, arguments: list[str]) -> Cost:
    """Run `blis` of a checkout once; a server until it answers."""
    port = _free_port() if arguments[0] == "serve" else 0
    words = _process(tree, [*arguments, *(["--port", str(port)] if port else [])])
    process = subprocess.Popen(
        words, cwd=tree, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        if port:
            _wait_for_health(port)
            process.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{tree}: exit code {process.returncode} of {' '.join(words)}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def ratios(pairs: Sequence[tuple[Cost, Cost]]) -> Ratios:
    """Return medians over pairs of runs that followed each other."""
    ours, bases = zip(*pairs, strict=True)
    return Ratios(
        ours=_median(ours),
        base=_median(bases),
        cpu=statistics.median(our.cpu_s / base.cpu_s for our, base in pairs),
        memory=statistics.median(our.memory_mib / base.memory_mib for our, base in pairs),
    )


def row(case: str, found: Ratios) -> str:
    """Return a case as a row of the table."""
    ours, base = found.ours, found.base
    return (
        f"| {case} | {ours.cpu_s * 1e3:.0f} | {base.cpu_s * 1e3:.0f} | {found.cpu:.2f} "
        f"| {ours.memory_mib:.1f} | {base.memory_mib:.1f} | {found.memory:.2f} |"
    )


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(each.cpu_s for each in costs), statistics.median(each.memory_mib for each in costs))


def _process(tree: Path, arguments: list[str]) -> list[str]:
    own = tree / ".venv" / "bin" / "python"
    return [str(own.absolute()) if own.exists() else sys.executable, "-m", "blis_sim.cli", *arguments]


def _environment() -> dict[str, str]:
    """Return this environment, in which Python keeps what it compiles."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _wait_for_health(port: int) -> None:
    until = time.monotonic() + STARTED_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STARTED_S)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return
        except ConnectionError:
            pass
        finally:
            connection.close()
        if time.monotonic() > until:
            raise SystemExit(f"no answer from /health within {STARTED_S} s")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
