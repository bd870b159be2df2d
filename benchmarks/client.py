"""What one client process on one core can do against `blis serve`, and how that compares with another load generator.

    python -m benchmarks.client [--bare] [--peer /path/to/vllm --tokenizer DIR] [-- SERVER_ARGUMENT ...]

Prints how late requests leave at 1,000 per second, whether 2,000 streams at once all get a row, and how many requests
per second `blis observe` and `vllm bench serve` reach. That rate is told twice: as it came out, and as the processor
time per request allows, for a server on the other core may be what is slow. `--bare` takes a server that costs next to
nothing (`benchmarks/bare_server.py`) for all but the streams.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAST = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "1000,0,0", "--max-num-seqs", "4096")
MODEL = "qwen/qwen3-14b"
LENGTHS = {"prompt": 32, "output": 8}
CONCURRENCY = 64
FEW = 1000
"""Requests of the run that is subtracted, for starting takes time, too."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A client that has ended: wall and processor time, and what it printed."""

    wall_s: float
    cpu_s: float
    output: str


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """The address of a server on the first core, until the block ends."""
    with subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True) as process:
        try:
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            assert process.stderr is not None
            while (found := re.search(r"http://\S+", process.stderr.readline())) is None:
                if process.poll() is not None:
                    raise SystemExit(f"the server has ended with code {process.returncode}")
            yield found[0]
        finally:
            process.terminate()
            process.communicate()


def ran(command: list[str]) -> Ran:
    """Run a client on the second core, if there is one."""
    cores = sorted(os.sched_getaffinity(0))
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, {cores[-1]})
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{command[0]} has ended with status {status}")
        output.seek(0)
        return Ran(time.monotonic() - began_s, usage.ru_utime + usage.ru_stime, output.read())


def observe(url: str, prefix: Path, **options: Any) -> tuple[Ran, dict[str, Any]]:
    """Run `blis observe`; also its summary."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = ran([sys.executable, "-m", "blis_cli", "observe", "--url", url, "-o", str(prefix), *flags])
    return done, json.loads(done.output)


def lateness(url: str, folder: Path) -> bool:
    """Send 1,000 requests per second; whether the 99th percentile of the lag is within a millisecond."""
    lengths = {"prompt_tokens": LENGTHS["prompt"], "output_tokens": LENGTHS["output"]}
    _, summary = observe(url, folder / "lag", rate=1000, num_requests=10_000, seed=1, **lengths)
    lag_ms = summary["send_lag_ms"]
    print(f"1,000 requests/s: {summary['completed']:,} of 10,000 completed")
    print(f"  send lag p50 {lag_ms['p50']:.3f} ms, p99 {lag_ms['p99']:.3f} ms, longest {lag_ms['max']:.3f} ms")
    return bool(lag_ms["p99"] <= 1)


def streams(url: str, folder: Path) -> bool:
    """Begin 2,000 streams in two seconds, none of which has ended by then; whether each has its row."""
    lengths = {"prompt_tokens": 16, "output_tokens": 100}
    _, summary = observe(url, folder / "streams", rate=1000, num_requests=2000, seed=2, **lengths)
    with (folder / "streams.csv").open() as file:
        rows = list(csv.DictReader(file))
    first_end = min(int(row["last_chunk_time_us"]) for row in rows)
    at_once = sum(int(row["send_time_us"]) < first_end for row in rows)
    print(
        f"2,000 streams: {len(rows):,} rows, {summary['completed']:,} completed, {at_once:,} open when the first ended"
    )
    return len(rows) == summary["completed"] == 2000


def rate_of_observe(url: str, folder: Path, num_requests: int) -> tuple[float, float]:
    """Requests per second, and processor seconds per request."""
    lengths = {"prompt_tokens": LENGTHS["prompt"], "output_tokens": LENGTHS["output"]}
    options = {"rate": 1_000_000, "max_concurrency": CONCURRENCY, **lengths}
    few, _ = observe(url, folder / "few", num_requests=FEW, seed=3, **options)
    many, summary = observe(url, folder / "many", num_requests=num_requests, seed=4, **options)
    return summary["request_throughput_per_s"], (many.cpu_s - few.cpu_s) / (num_requests - FEW)


def rate_of_peer(url: str, peer: str, tokenizer: str, num_requests: int) -> tuple[float, float]:
    """The same of `vllm bench serve`."""
    command = [peer, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", MODEL]
    command += ["--tokenizer", tokenizer, "--dataset-name", "random", "--ignore-eos", "--request-rate", "inf"]
    command += ["--random-input-len", str(LENGTHS["prompt"]), "--random-output-len", str(LENGTHS["output"])]
    command += ["--max-concurrency", str(CONCURRENCY), "--disable-tqdm", "--num-prompts"]
    few, many = ran([*command, str(FEW)]), ran([*command, str(num_requests)])
    (line,) = [each for each in many.output.splitlines() if each.startswith("Request throughput")]
    return float(line.split()[-1]), (many.cpu_s - few.cpu_s) / (num_requests - FEW)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a `vllm` command to compare with")
    parser.add_argument("--tokenizer", default="gpt2", help="its tokenizer, a folder or a name")
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--only", choices=("lateness", "streams", "rate"))
    parser.add_argument("server", nargs="*", help="further arguments of the server")
    given = parser.parse_args()
    serve = ["blis_cli", "serve", MODEL, "--host", "127.0.0.1", "--port", "0", *FAST]
    bare = ["benchmarks.bare_server", str(LENGTHS["output"])]
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.only in (None, "streams"):
            with running([*serve, "--beta-coeffs", "40000,0,0", *given.server]) as url:
                good &= streams(url, folder)
        with running(bare if given.bare else [*serve, *given.server]) as url:
            if given.only in (None, "lateness"):
                good &= lateness(url, folder)
            if given.only in (None, "rate"):
                good &= rates(url, folder, given.peer, given.tokenizer, given.requests)
    return 0 if good else 1


def rates(url: str, folder: Path, peer: str | None, tokenizer: str, num_requests: int) -> bool:
    """Print the rates; whether `blis observe` is five times as fast as the peer."""
    rate, cpu_s = rate_of_observe(url, folder, num_requests)
    print(
        f"blis observe: {rate:,.0f} requests/s, {cpu_s * 1e6:,.0f} us of processor each: {1 / cpu_s:,.0f}/s on a core"
    )
    if peer is None:
        return True
    its_rate, its_cpu_s = rate_of_peer(url, peer, tokenizer, num_requests)
    print(
        f"vllm bench:   {its_rate:,.0f} requests/s, {its_cpu_s * 1e6:,.0f} us of processor each: {1 / its_cpu_s:,.0f}/s"
    )
    print(f"  {rate / its_rate:.1f} times the rate, {its_cpu_s / cpu_s:.1f} times less processor time")
    return its_cpu_s / cpu_s >= 5


if __name__ == "__main__":
    sys.exit(main())
