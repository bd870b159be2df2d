"""How well a replay predicts recordings of a real server, for every recording in a folder.

    python benchmarks/accuracy.py RECORDINGS [--write docs/accuracy.md]

RECORDINGS holds folders with `trace.yaml` and `trace.csv` (and `trace.itl.csv.gz` where token times were recorded),
and a `server_config.json` with the server's settings. Each recording is replayed with those settings and compared;
two recordings of the same workload (`*_vanilla`, `*_patched`) are compared with each other: no prediction can be
expected to do better than a second run of the real thing.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.calibration import PLAIN, calibrate
from calibrate.compare import Comparison, compare
from calibrate.network import Network, rtt_us_of
from engine.core import Engine
from engine.deployment import Deployment, DeploymentOptions, resolve
from replay.arrivals import arrivals_of
from replay.outputs import result_rows
from replay.simulate import simulate
from traces import ResultRow, Trace, TraceRow, read_itl, read_trace

METRICS = ("ttft", "e2e", "itl")

PREAMBLE = """# Accuracy on recordings of real vLLM

What `blis replay` predicts with the shipped coefficients, nothing fitted, against recordings of vLLM 0.23 with
Qwen3-14B on one H100: about 1,000 prompt tokens and 128 output tokens at 2 to 6 requests/s, longer prompts in the w5
and w7 recordings. The server's settings are those it ran with: 18,038 KV blocks, 8,192 batched tokens, 256 sequences.

MAPE is the mean of |real - simulated| / real over all requests, r their correlation. "-" stands where the recording
has no token times and ITL is taken from the first and last chunk instead, or where a metric hardly varies. A second
run of the real server is no perfect prediction of the first either; the last table says how good it is.

The table is produced by `python benchmarks/accuracy.py RECORDINGS --write docs/accuracy.md`.
"""


@dataclass(frozen=True, slots=True)
class Score:
    """One row of a table."""

    name: str
    num_requests: int
    metrics: dict[str, Comparison]


def main() -> int:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--write", type=Path, default=None)
    arguments = parser.parse_args()
    text = "\n".join(_report(arguments.recordings))
    sys.stdout.write(text)
    if arguments.write is not None:
        arguments.write.write_text(text)
    return 0


def _report(folder: Path) -> Iterator[str]:
    traces = {path.parent.name: path for path in sorted(folder.glob("*/*/trace.yaml"))}
    server = json.loads((folder / "server_config.json").read_text())
    yield PREAMBLE
    for scheduling in ("vllm", "blis"):
        deployment = resolve(_options(server, scheduling))
        scores = [predict(name, path, deployment) for name, path in traces.items()]
        yield f"## Replayed with `--scheduling {scheduling}`\n"
        yield from _table(scores)
    floors = [
        repeat(name.removesuffix("_vanilla"), path, traces[name.replace("_vanilla", "_patched")])
        for name, path in traces.items()
        if name.replace("_vanilla", "_patched") in traces and name.endswith("_vanilla")
    ]
    yield "## A second run of the real server\n"
    yield from _table(floors)


def _options(server: dict[str, Any], scheduling: str) -> DeploymentOptions:
    return DeploymentOptions(
        model=server["model"].lower(),
        hardware="H100",
        tp=server["tensor_parallel_size"],
        total_kv_blocks=server["num_gpu_blocks"],
        block_size_in_tokens=server["block_size"],
        max_num_batched_tokens=server["max_num_batched_tokens"],
        max_num_seqs=256,
        max_model_len=server["max_seq_len"],
        scheduling=scheduling,
    )


def predict(name: str, header: Path, deployment: Deployment) -> Score:
    """Replay a recording and compare."""
    trace = read_trace(header)
    arrivals = arrivals_of(trace, deployment.model.name, deployment.config).arrivals
    engine = Engine(deployment.config, deployment.latency, reports_steps=False)
    results = list(result_rows(simulate(engine, arrivals).requests))
    itl_path = header.with_name("trace.itl.csv.gz")
    found = calibrate(
        trace,
        results,
        read_itl(itl_path) if itl_path.exists() else {},
        PLAIN,
        warm_up_requests=trace.header.warm_up_requests,
        network=Network(rtt_us_of(trace.header)),
        targets={},
        hit_rate=None,
        ttft_threshold=1.0,
    )
    metrics = dict(found.metrics)
    if "itl" not in metrics:
        metrics["itl"] = _itl_from_chunks(trace, results)
    return Score(name, found.metrics["e2e"].count, metrics)


def _itl_from_chunks(trace: Trace, results: list[ResultRow]) -> Comparison:
    """Mean ITL of each request from its first and last chunk, where no token times were recorded."""
    simulated = {result.request_id: result.itl_mean_us or 0.0 for result in results}
    pairs = [
        (_mean_itl_us(row), simulated[row.request_id])
        for row in trace.rows
        if row.status == "ok" and row.output_tokens > 1 and row.request_id in simulated
    ]
    real, predicted = np.array(pairs, np.float64).T
    return compare(real, predicted)


def repeat(name: str, header: Path, other_header: Path) -> Score:
    """Compare two recordings of one workload, request by request: equal arrival times name the pairs."""
    rows = {row.arrival_time_us: row for row in read_trace(header).rows if row.status == "ok"}
    others = {row.arrival_time_us: row for row in read_trace(other_header).rows if row.status == "ok"}
    both = sorted(rows.keys() & others.keys())
    values = {
        "ttft": lambda row: row.first_chunk_time_us - row.send_time_us,
        "e2e": lambda row: row.last_chunk_time_us - row.send_time_us,
        "itl": _mean_itl_us,
    }
    metrics = {
        metric: compare(
            np.array([value(rows[at]) for at in both], np.float64),
            np.array([value(others[at]) for at in both], np.float64),
        )
        for metric, value in values.items()
    }
    return Score(name, len(both), metrics)


def _mean_itl_us(row: TraceRow) -> float:
    return (row.last_chunk_time_us - row.first_chunk_time_us) / max(row.output_tokens - 1, 1)


def _table(scores: list[Score]) -> Iterator[str]:
    yield "| recording | requests | TTFT MAPE / r | E2E MAPE / r | ITL MAPE / r | mean TTFT error | p99 TTFT error |"
    yield "|---|---|---|---|---|---|---|"
    for score in scores:
        cells = " | ".join(_cell(score.metrics[metric]) for metric in METRICS)
        ttft = score.metrics["ttft"]
        mean, p99 = _error(ttft.real.mean, ttft.sim.mean), _error(ttft.real.p99, ttft.sim.p99)
        yield f"| {score.name} | {score.num_requests:,} | {cells} | {mean} | {p99} |"
    yield ""


def _cell(comparison: Comparison) -> str:
    r = "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
    return f"{comparison.mape:.1%} / {r}"


def _error(real: float, simulated: float) -> str:
    return f"{(simulated - real) / real:+.1%}"


if __name__ == "__main__":
    sys.exit(main())
