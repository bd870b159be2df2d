"""Gaps between tokens at many streams: a genuine frontend before `blis engine-core`, and one before a stand-in.

    python -m workshop.vllm_oracle.streams --python V/bin/python --stand-in FOLDER [--streams 500] [--api-servers 1 2]

`--python` has vLLM 0.33, and FOLDER has `fakeexec.py`, an executor that sleeps instead of computing, and `model`. Both
engines take 20 ms for a step. The frontend may be the limit: the largest number of streams is looked for at which the
one before the stand-in keeps 20 ms within 2 ms at the 99th percentile, and both are measured there, too. The machine
should be idle. Exit code 1 where a 99th percentile of ours is 2 ms above that of the stand-in.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop

from workshop.ending import refuse, run_command
from workshop.server_load.client import HOST, Case, Stream, request_bytes

STEP_MS, WITHIN_MS = 20, 2.0
NUM_TOKENS, FIRST_TOKENS = 100, 20
"""Tokens of a stream, and those at its beginning that are left out: all streams begin within them."""
GRID = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384)
STARTS_WITHIN_S, ENDS_WITHIN_S = 240.0, 60.0
MODEL_LIMIT_TOKENS, MOST_SEQS = 2048, 1024
PORTS = range(18900, 19000, 10)


class Gaps(NamedTuple):
    """Gaps between the events of all streams, in milliseconds, and tokens per second."""

    p50_ms: float
    p99_ms: float
    rate: float

    @property
    def is_kept(self) -> bool:
        """Whether nearly all are those of the engine."""
        return abs(self.p50_ms - STEP_MS) <= WITHIN_MS and abs(self.p99_ms - STEP_MS) <= WITHIN_MS


def main() -> int:
    """Print a row for each number of API servers, number of streams and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python of an environment with vLLM 0.33")
    parser.add_argument("--stand-in", required=True, type=Path, help="folder of fakeexec.py and model")
    parser.add_argument("--streams", type=int, default=500, help="streams at once")
    parser.add_argument("--api-servers", type=int, nargs="+", default=[1, 2], help="API servers of a frontend")
    given = parser.parse_args()
    for path in (Path(given.python), given.stand_in / "fakeexec.py", given.stand_in / "model"):
        if not path.exists():
            refuse(f"{path}: no such file or folder")
    with _started(given) as ports:
        return max([_compared(number, *pair, given.streams) for number, pair in ports.items()])


@contextmanager
def _started(given: argparse.Namespace) -> Iterator[dict[int, tuple[int, int]]]:
    """Start all frontends and engines at once. Yields the ports of the stand-in's and our frontend by API servers."""
    environment = {
        **os.environ,
        **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_CPU_KVCACHE_SPACE"), "1"),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_HOST_IP": HOST,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "FX_STEP_MS": str(STEP_MS),
        "PYTHONPATH": str(given.stand_in),
    }
    model, limits = str(given.stand_in / "model"), ["--max-model-len", str(MODEL_LIMIT_TOKENS)]
    serve = [given.python, "-m", "vllm.entrypoints.cli.main", "serve", model, "--enforce-eager", *limits]
    engine = ["--max-num-seqs", str(MOST_SEQS), "--num-gpu-blocks-override", "40000", "--no-async-scheduling"]
    free, found, commands = iter(PORTS), dict[int, tuple[int, int]](), list[list[str]]()
    for number in given.api_servers:
        pair = found[number] = (next(free), next(free))
        for port in pair:
            link = ["--data-parallel-size", "1", "--data-parallel-address", HOST, "--data-parallel-rpc-port"]
            link.append(str(port + 1))
            front = ["--served-model-name", "m", "--host", HOST, "--port", str(port), "--data-parallel-size-local", "0"]
            api = ["--api-server-count", str(number), "--disable-uvicorn-access-log"]
            commands.append([*serve, *link, *front, *api, "--no-async-scheduling"])
            if port == pair[0]:
                stand_in = ["--headless", "--distributed-executor-backend", "fakeexec.FakeExecutor"]
                commands.append([*serve, *link, *stand_in, *engine])
            else:
                steps = ["--latency-model", "blackbox", "--alpha-coeffs", "0,0,0"]
                steps += ["--beta-coeffs", f"{STEP_MS * 1000},0,0"]
                ours = [sys.executable, "-m", "blis_sim.cli", "engine-core", model, *limits]
                commands.append([*ours, *link[2:], *engine, *steps])
    running = [_process(each, environment) for each in commands]
    try:
        for port in (port for pair in found.values() for port in pair):
            _await(port, running)
        yield found
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _process(command: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    if command[0] == sys.executable:
        environment = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def _await(port: int, running: "Sequence[subprocess.Popen[bytes]]") -> None:
    ends_s = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < ends_s:
        for each in running:
            if each.poll() is not None:
                refuse(f"a server has ended with code {each.returncode}")
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5).close()
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    refuse(f"no frontend listened on port {port} within {STARTS_WITHIN_S:g} s")


def _compared(num_api_servers: int, stand_in: int, ours: int, num_streams: int) -> int:
    """Print the gaps of both at some numbers of streams. Returns 1 where ours are longer by too much."""
    for port in (stand_in, ours):
        _measured(port, GRID[0])  # the first requests import and compile
    largest = 0
    for number in GRID:
        if not _measured(stand_in, number).is_kept:
            break
        largest = number
    code = 0
    for number in filter(None, (largest, num_streams)):
        theirs, mine = _measured(stand_in, number), _measured(ours, number)
        code |= mine.p99_ms > theirs.p99_ms + WITHIN_MS
        for name, gaps in (("stand-in", theirs), ("blis engine-core", mine)):
            sys.stdout.write(
                f"{num_api_servers} API servers, {number:3} streams, {name:16} gaps p50 {gaps.p50_ms:6.2f} ms, "
                f"p99 {gaps.p99_ms:6.2f} ms, {gaps.rate:6.0f} tokens/s\n"
            )
    sys.stdout.write(f"{num_api_servers} API servers keep {STEP_MS} ms within {WITHIN_MS:g} up to {largest} streams\n")
    sys.stdout.flush()
    return code


def _measured(port: int, num_streams: int) -> Gaps:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_gaps(port, num_streams))


async def _gaps(port: int, num_streams: int) -> Gaps:
    loop = asyncio.get_running_loop()
    streams = [(await loop.create_connection(Stream, HOST, port))[1] for _ in range(num_streams)]
    case = Case(num_requests=num_streams, num_tokens=NUM_TOKENS, model="m")
    request, began_s = request_bytes(case), time.monotonic()
    for stream in streams:
        stream.send(request)
    await asyncio.wait([stream.done for stream in streams], timeout=ENDS_WITHIN_S)
    num_tokens, took_s = sum(sum(stream.counts) for stream in streams), time.monotonic() - began_s
    gaps_ms = np.concatenate([np.diff(stream.instants)[FIRST_TOKENS:-1] * 1000 for stream in streams])
    for stream in streams:
        stream.close()
    if not len(gaps_ms):
        refuse(f"the frontend on port {port} has sent no tokens")
    p50_ms, p99_ms = np.percentile(gaps_ms, (50, 99))
    return Gaps(float(p50_ms), float(p99_ms), num_tokens / took_s)


if __name__ == "__main__":
    run_command(main)
