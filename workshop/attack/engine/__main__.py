"""Attacks the engine with random runs and looks for broken laws.

    python -m workshop.attack.engine [--runs 8000] [--seed 0] [--processes 2] [--no-compiled | --compiled SITE]

Each run is one engine or one cluster with few KV blocks, odd requests and every switch, made twice: plainly, step by
step, and fast, in leaps. Both must give equal events, every run must end, every request must end once and leave nothing
behind, and the clock must never go back. Then the same runs are made by the engine compiled to C, which is built for
it, or taken from the folder SITE of `pip install --target SITE .`; every byte must be the same. Equal seeds give equal
runs; `--only NUMBER` makes one of them. The exit code is 1 when a law is broken.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Line:
    """The report of a process on one run: the digest of its events, or the law that it broke."""

    number: int
    digest: str
    broken: str


def main() -> int:
    """Returns the exit code."""
    arguments = _arguments()
    if arguments.worker is not None:
        first, end = map(int, arguments.worker.split(":"))
        return _work(range(first, end), arguments.seed)
    if arguments.only is not None:
        return _work(range(arguments.only, arguments.only + 1), arguments.seed)
    began_s = time.monotonic()
    plain = _made(arguments, {"PYTHONPATH": str(ROOT)})
    print(_summary("plain", plain, time.monotonic() - began_s), flush=True)
    failures = [f"run {line.number}: {line.broken}" for line in plain if line.broken]
    if not arguments.no_compiled:
        failures += _compared(arguments, plain)
    for failure in failures[:MOST_SHOWN]:
        print(failure)
    print(f"{len(failures)} laws broken in {arguments.runs:,} runs")
    return 1 if failures else 0


def _compared(arguments: argparse.Namespace, plain: Sequence[Line]) -> list[str]:
    """The difference of the compiled engine."""
    with tempfile.TemporaryDirectory() as folder:
        site = arguments.compiled or _built(Path(folder) / "site")
        began_s = time.monotonic()
        compiled = _made(arguments, {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "BLIS_ATTACK_COMPILED": "1"})
    print(_summary("compiled", compiled, time.monotonic() - began_s), flush=True)
    return [
        f"run {mine.number}: plain {mine.digest or mine.broken}, compiled {theirs.digest or theirs.broken}"
        for mine, theirs in zip(plain, compiled, strict=True)
        if (mine.digest, mine.broken) != (theirs.digest, theirs.broken)
    ]


def _summary(which: str, lines: Sequence[Line], wall_s: float) -> str:
    from workshop.attack.engine.runs import kind_of

    kinds = Counter(kind_of(line.number) for line in lines)
    made = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
    return f"{which}: {len(lines):,} runs in {wall_s:.0f} s ({made}), {sum(bool(line.broken) for line in lines)} broken"


def _built(site: Path) -> Path:
    """An installation of this checkout with a compiled engine."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", str(site), "."]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "BLIS_COMPILE": "1"}, check=True)
    return site


def _made(arguments: argparse.Namespace, environment: dict[str, str]) -> list[Line]:
    """Let processes make all runs. Raises CalledProcessError when one of them fails."""
    share = -(-arguments.runs // arguments.processes)
    processes = []
    for first in range(0, arguments.runs, share):
        command = [sys.executable, "-P", "-m", "workshop.attack.engine", "--seed", str(arguments.seed)]
        command += ["--worker", f"{first}:{min(first + share, arguments.runs)}"]
        env = {**os.environ, **environment}
        processes.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True))
    lines: list[Line] = []
    for process in processes:
        written, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        lines += _read(written)
    return lines


def _read(written: str) -> Iterator[Line]:
    for text in written.splitlines():
        number, digest, broken = text.split("\t", 2)
        yield Line(int(number), digest, broken)


def _work(numbers: range, seed: int) -> int:
    """Make runs one after the other, with a line for each on standard output."""
    import blis_sim.engine.core
    from workshop.attack.engine.runs import BrokenLawError, record_run

    is_compiled = not blis_sim.engine.core.__file__.endswith(".py")
    if is_compiled != ("BLIS_ATTACK_COMPILED" in os.environ):
        raise SystemExit(f"the engine is not the one requested: {blis_sim.engine.core.__file__}")
    for number in numbers:
        digest, broken = "", ""
        try:
            digest = record_run(number, seed).digest()
        except BrokenLawError as error:
            broken = str(error)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a finding)
            broken = f"{type(error).__name__}: {error}"
            if len(numbers) == 1:
                traceback.print_exc()
        sys.stdout.write(f"{number}\t{digest}\t{broken.replace(chr(10), ' ')}\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-compiled", action="store_true", help="Make the runs by the plain engine alone.")
    parser.add_argument(
        "--compiled", type=Path, metavar="SITE", help="Folder of an installation with a compiled engine."
    )
    parser.add_argument("--only", type=int, metavar="NUMBER", help="Make this run alone and show what it raises.")
    parser.add_argument("--worker", metavar="FIRST:END", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
