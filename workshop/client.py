"""Throughput of one client process on one core against `blis serve`, and how that compares with other load generators.

    python -m workshop.client [--bare] [--peer /path/to/vllm|guidellm ...] [--tokenizer DIR] [-- SERVER_ARGUMENT ...]

Prints how late requests leave at 1,000 per second, whether 2,000 streams at once all get a row, and how many requests
per second `blis observe` and its peers, `vllm bench serve` and GuideLLM, reach. That rate is printed twice: as it came
out, and as the processor time per request allows, for a server on the other core may be what is slow. `--bare` takes a
server that costs next to nothing (`workshop/bare_server.py`) for all but the streams. `--only cost` separates the
cost of a request and of an event of its stream for `blis observe`, with events that come together and one by one.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from workshop.client_peers import CONCURRENCY, MODEL, PEERS, FinishedClient, Rate, Shape, run_client

FAST = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "1000,0,0", "--max-num-seqs", "4096")
LENGTHS = {"prompt_tokens": 32, "output_tokens": 8}
FEW = 1000
"""Requests of the run that is subtracted, for starting takes time, too."""


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


def observe(url: str, prefix: Path, **options: Any) -> tuple[FinishedClient, dict[str, Any]]:
    """Run `blis observe`; also its summary."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = run_client([sys.executable, "-m", "blis_sim.cli", "observe", "--url", url, "-o", str(prefix), *flags])
    return done, json.loads(done.output)


def lateness(url: str, folder: Path) -> bool:
    """Send 1,000 requests per second; whether the 99th percentile of the lag is within a millisecond."""
    _, summary = observe(url, folder / "lag", rate=1000, num_requests=10_000, seed=1, **LENGTHS)
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
    return bool(len(rows) == summary["completed"] == 2000)


def rate_of_observe(url: str, folder: Path, num_requests: int, lengths: dict[str, int]) -> Rate:
    """Rate of `blis observe`."""
    options = {"rate": 1_000_000, "max_concurrency": CONCURRENCY, **lengths}
    few, _ = observe(url, folder / "few", num_requests=FEW, seed=3, **options)
    many, summary = observe(url, folder / "many", num_requests=num_requests, seed=4, **options)
    return Rate(summary["request_throughput_per_s"], (many.cpu_s - few.cpu_s) / (num_requests - FEW))


def rates(url: str, folder: Path, given: argparse.Namespace) -> bool:
    """Print the rates, repeated in turn; whether `blis observe` has five times the rate of each peer at the median."""
    shape = Shape(num_requests=given.requests, **LENGTHS)
    found: dict[str, list[Rate]] = {}
    for _ in range(given.repeat):
        found.setdefault("blis observe", []).append(rate_of_observe(url, folder, given.requests, LENGTHS))
        for peer in given.peer:
            rate = PEERS[Path(peer).name](peer, url, given.tokenizer, shape)
            found.setdefault(Path(peer).name, []).append(rate)
    for name, each in found.items():
        cpu_us = spread([rate.cpu_s * 1e6 for rate in each], "{:,.0f}")
        print(f"{name}: {spread([rate.per_s for rate in each], '{:,.0f}')} requests/s, {cpu_us} us of processor each")
    ours = found.pop("blis observe")
    good = True
    for name, theirs in found.items():
        times = [our.per_s / its.per_s for our, its in zip(ours, theirs, strict=True)]
        less = [its.cpu_s / our.cpu_s for our, its in zip(ours, theirs, strict=True)]
        print(
            f"  {spread(times, '{:.1f}')} times the rate of {name}, {spread(less, '{:.1f}')} times less processor time"
        )
        good &= statistics.median(times) >= 5
    return good


def spread(values: list[float], form: str) -> str:
    """The median, and of several values also the least and the greatest."""
    median = form.format(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({form.format(min(values))} to {form.format(max(values))})"


def cost(folder: Path, repeat: int, most_requests: int) -> None:
    """Print the processor time of `blis observe` for streams of some lengths: the least of a few runs of each."""
    for gap_ms in (0, 2):
        found = {}
        for num_tokens, share in {1: 1.0, 8: 1.0, 64: 0.5, 256: 0.3125}.items():
            with running(["workshop.bare_server", str(num_tokens), str(gap_ms)]) as url:
                lengths = LENGTHS | {"output_tokens": num_tokens}
                rates = [
                    rate_of_observe(url, folder, max(1, int(most_requests * share)), lengths) for _ in range(repeat)
                ]
            found[num_tokens] = min(rate.cpu_s for rate in rates) * 1e6
        per_event, fixed = np.polyfit(list(found), list(found.values()), 1, w=1 / np.array(list(found.values())))
        shown = ", ".join(f"{each:,.0f} with {num_tokens}" for num_tokens, each in found.items())
        print(f"events {'one by one' if gap_ms else 'together'}: {shown} tokens, us of processor per request")
        print(f"  {fixed:.0f} us for a request and {per_event:.2f} us for an event")


def main() -> int:
    """Measure what is asked for; 1 if one of the figures is not what it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="a `vllm` or `guidellm` command to compare with")
    parser.add_argument("--tokenizer", default="gpt2", help="that of the peers, a folder or a name")
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--repeat", type=int, default=1, help="how often rates and costs are measured")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--only", choices=("lateness", "streams", "rate", "cost"))
    parser.add_argument("server", nargs="*", help="further arguments of the server")
    given = parser.parse_args()
    unknown = [peer for peer in given.peer if Path(peer).name not in PEERS]
    if unknown:
        parser.error(f"--peer must be a command named {' or '.join(PEERS)}, got {unknown[0]}")
    with tempfile.TemporaryDirectory() as name:
        if given.only == "cost":
            cost(Path(name), given.repeat, given.requests)
            return 0
        return 0 if measured(Path(name), given) else 1


def measured(folder: Path, given: argparse.Namespace) -> bool:
    """Print what is asked for; whether all of it is as it has to be."""
    serve = ["blis_sim.cli", "serve", MODEL, "--host", "127.0.0.1", "--port", "0", *FAST]
    bare = ["workshop.bare_server", str(LENGTHS["output_tokens"])]
    good = True
    if given.only in (None, "streams"):
        with running([*serve, "--beta-coeffs", "40000,0,0", *given.server]) as url:
            good &= streams(url, folder)
    if given.only in (None, "lateness", "rate"):
        with running(bare if given.bare else [*serve, *given.server]) as url:
            if given.only in (None, "lateness"):
                good &= lateness(url, folder)
            if given.only in (None, "rate"):
                good &= rates(url, folder, given)
    return good


if __name__ == "__main__":
    sys.exit(main())
