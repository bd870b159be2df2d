"""How well a replay predicts recordings of a real server, for every recording in a folder.

    python -m workshop.accuracy RECORDINGS [--coefficients FILE] [--write docs/accuracy.md]

RECORDINGS holds `train` and `validate`, each with folders of `trace.yaml` and `trace.csv` (and `trace.itl.csv.gz` where
token times were recorded), and a `server_config.json` with the server's settings. Each recording is replayed with those
settings and compared, with the default latency model and with learned coefficients, those that ship unless there is a
FILE. Where the client had a cap on requests in flight, it is sent by schedule and cap, and its duration is predicted,
too. Two recordings of the same workload (`*_vanilla`, `*_patched`) are compared with each other: no single prediction
can be expected to do better than a second run of the real thing. `--write` replaces its own sections of a page and
keeps all others, such as that of `left_out.py`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from blis_sim.engine.latency.registry import DEFAULT_LATENCY_MODEL
from blis_sim.engine.latency.wrapped import PhaseShifted
from calibrate.calibration import PLAIN, Calibration, calibrate
from calibrate.compare import Comparison, Network, compare, rtt_us_of
from replay.arrivals import arrivals_of
from replay.output.ensemble import averaged
from replay.output.metrics import result_rows
from replay.simulation.record import Record
from replay.simulation.simulate import simulate, simulate_reissued
from traces import Trace, TraceRow, read_itl, read_trace
from traces.client_cap import ClientCap, client_cap_of
from workshop.ending import run_command
from workshop.sections import write_sections

METRICS = ("ttft", "e2e", "itl")

PHASES = 8

PREAMBLE = """# Accuracy on recordings of real vLLM

Predictions of `blis replay` compared with recordings of vLLM 0.23 with Qwen3-14B on one H100. Requests have about 1,000
prompt tokens and 128 output tokens, at 2 to 6 requests/s. Those of the w7 recording have 256 or 4,096 prompt tokens.
The server's settings are those it ran with: 18,038 KV blocks, 8,192 batched tokens, 256 sequences.

MAPE is the mean of |real - simulated| / real over all requests, r their correlation; "-" stands where a metric hardly
varies. ITL is the mean of each request, from its first and last chunk where the recording has no token times. Mean and
p99 are those of all requests; their errors are signed. A second run of the real server is no perfect prediction of the
first either: the second table has its error.

The tables are produced by `python -m workshop.accuracy RECORDINGS --write docs/accuracy.md`.
"""

LEARNED_TEXT = """## Learned coefficients

[`blis fit`](fit.md) has learned from the recordings marked *learned from*, and has seen nothing of the others. The rate
of 6 requests/s is that of w5_sweep_agg6, too. Prompts of w7_sweep_agg18 are as long as those of w7_sweep_agg6, at three
times the rate and with a cap. [What it learned](../blis_sim/engine/latency/catalogue/qwen3-14b-h100.coefficients.yaml)
ships, without the `growth_requests` of 8 that it chose, which would lower the TTFT MAPE of w5_sweep_agg24 to 7.5 %. The
others were looked at 17 times in all, the last time for this table. These coefficients were chosen among five
candidates with them and the [published servers](published.md) at hand. The cost of prompts soon after prompts beyond
2,000 tokens lies between two guesses that were looked at. Replayed with `--engine vllm --latency-model fitted`; the
first line of each recording is one run, the second `--phase-average {}`. [What limits these
figures](accuracy-limits.md).
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
    parser.add_argument("--coefficients", type=Path, default=LEARNED_COEFFICIENTS)
    parser.add_argument("--write", type=Path, default=None)
    arguments = parser.parse_args()
    text = "\n".join(_report(arguments.recordings, arguments.coefficients))
    sys.stdout.write(text)
    if arguments.write is not None:
        write_sections(arguments.write, text)
    return 0


def _report(folder: Path, coefficients: Path) -> Iterator[str]:
    traces = {path.parent.name: path for path in sorted(folder.glob("*/*/trace.yaml"))}
    server = json.loads((folder / "server_config.json").read_text())
    yield PREAMBLE
    yield LEARNED_TEXT.format(PHASES)
    learned = resolve(options_of(server, "vllm", coefficients))
    yield from table([score for name, path in traces.items() for score in _learned_scores(name, path, learned)])
    floors = [
        repeat(name.removesuffix("_vanilla"), path, traces[name.replace("_vanilla", "_patched")])
        for name, path in traces.items()
        if name.replace("_vanilla", "_patched") in traces and name.endswith("_vanilla")
    ]
    yield "## A second run of the real server\n"
    yield from table(floors)
    for scheduling in ("vllm", "blis"):
        deployment = resolve(options_of(server, scheduling, None))
        yield f"## Replayed with `--engine {scheduling}`\n"
        yield f"With `--latency-model {DEFAULT_LATENCY_MODEL}`, and nothing learned.\n"
        yield from table([predict(name, path, deployment, 1) for name, path in traces.items()])


def _learned_scores(name: str, path: Path, deployment: Deployment) -> Iterator[Score]:
    mark = "learned from" if path.parent.parent.name == "train" else "**not seen**"
    yield predict(f"{name}, {mark}", path, deployment, 1)
    yield predict("", path, deployment, PHASES)


def options_of(server: dict[str, Any], scheduling: str, coefficients: Path | None) -> DeploymentOptions:
    """Return the server of the recordings under an engine, with learned coefficients or the default latency model."""
    return DeploymentOptions(
        model=server["model"].lower(),
        hardware="H100",
        tp=server["tensor_parallel_size"],
        total_kv_blocks=server["num_gpu_blocks"],
        block_size=server["block_size"],
        max_num_batched_tokens=server["max_num_batched_tokens"],
        max_num_seqs=256,
        max_model_len=server["max_seq_len"],
        engine=scheduling,
        latency_model=DEFAULT_LATENCY_MODEL if coefficients is None else "fitted",
        coefficients=None if coefficients is None else str(coefficients),
    )


def predict(name: str, header: Path, deployment: Deployment, num_phases: int) -> Score:
    """Replay a recording and compare; with several phases, figures over all requests are those of single runs."""
    trace = read_trace(header)
    cap = client_cap_of(trace.rows)
    runs = _runs(trace, deployment, num_phases, cap)
    single = [_compared(header, trace, run) for run in runs]
    found = _compared(header, trace, averaged(runs))
    metrics = {each: _with_tails(found.metrics[each], [one.metrics[each] for one in single]) for each in found.metrics}
    if cap is not None:
        simulated_s = float(np.mean([one.sim_throughput.duration_s for one in single]))
        name += f" (cap of {cap.max_concurrency}, duration {_error(found.real_throughput.duration_s, simulated_s)})"
    return Score(name, found.metrics["e2e"].count, metrics)


def _runs(trace: Trace, deployment: Deployment, num_phases: int, cap: ClientCap | None) -> list[Record]:
    """One run for each phase, sent by the schedule and the cap of a client that had one."""
    arrivals = arrivals_of(trace, deployment.model.name, deployment.config, as_scheduled=cap is not None).arrivals
    runs = []
    for phase in range(num_phases):
        latency = deployment.latency if num_phases == 1 else PhaseShifted(deployment.latency, phase)
        engine = Engine(deployment.config, latency, reports_steps=False)
        run = simulate(engine, arrivals) if cap is None else simulate_reissued(engine, arrivals, cap.max_concurrency)
        runs.append(run.requests)
    return runs


def _with_tails(comparison: Comparison, single: list[Comparison]) -> Comparison:
    """`comparison` with the simulated mean and p99 of single runs, averaged."""
    mean, p99 = (float(np.mean([getattr(each.sim, which) for each in single])) for which in ("mean", "p99"))
    return replace(comparison, sim=replace(comparison.sim, mean=mean, p99=p99))


def _compared(header: Path, trace: Trace, run: Record) -> Calibration:
    itl_path = header.with_name("trace.itl.csv.gz")
    return calibrate(
        trace,
        list(result_rows(run, says_when_sent=True)),
        read_itl(itl_path) if itl_path.exists() else {},
        PLAIN,
        warm_up_requests=trace.header.warm_up_requests,
        network=Network(rtt_us_of(trace.header)),
        targets={},
        hit_rate=None,
        ttft_threshold=1.0,
    )


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


def table(scores: list[Score]) -> Iterator[str]:
    """Yield the lines of a table, and an empty one."""
    yield (
        "| recording | requests | TTFT MAPE / r | E2E MAPE / r | ITL MAPE / r "
        "| TTFT mean, p99 | E2E mean, p99 | ITL mean, p99 |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for score in scores:
        cells = " | ".join(_cell(score.metrics[metric]) for metric in METRICS)
        errors = " | ".join(_tails(score.metrics[metric]) for metric in METRICS)
        num_requests = f"{score.num_requests:,}" if score.name else ""
        yield f"| {score.name} | {num_requests} | {cells} | {errors} |"
    yield ""


def _tails(comparison: Comparison) -> str:
    real, sim = comparison.real, comparison.sim
    return f"{_error(real.mean, sim.mean)}, {_error(real.p99, sim.p99)}"


def _cell(comparison: Comparison) -> str:
    r = "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
    return f"{comparison.mape:.1%} / {r}"


def _error(real: float, simulated: float) -> str:
    return f"{(simulated - real) / real:+.1%}"


if __name__ == "__main__":
    run_command(main)
