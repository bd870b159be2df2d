"""Plans, each served from its own command line and observed: are their figures those of the plan?

    python -m workshop.plans_served [--only 1,5] [--speed 0.5] [--requests 60] [--exhaustive] [--any-figure] [--json]

Each plan is computed, its line of `blis serve` is started at --speed, and `blis observe` sends the requests that the
plan simulated, at their instants. A figure must lie in the range that the plan states: around what was planned, the
error of its metric that nine of ten predictions stay within. A percentile of so few requests lies, in nine of ten
cases, between two of their ranks, which belong to the range; above the highest rank it has no bound. With --exhaustive
every plan is also searched exhaustively, and both answers must cost the same. A speed below 1 makes whatever the
machine adds count less. Exit code 1 where a figure is out of range.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from math import ceil, floor, inf, sqrt
from pathlib import Path
from typing import Any

from blis_sim.bench.capacity import CapacityPlan, Trial
from blis_sim.bench.plan_command import PlanOptions, find_plan
from blis_sim.bench.plan_report import serving_of
from blis_sim.bench.points import plan_of
from blis_sim.bench.simulation_commands import simulation
from blis_sim.engine.latency.confidence import UNKNOWN_STEP_ERROR
from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.option import parse_value
from blis_sim.testing import server
from replay.output.report import report
from replay.simulation.record import Pool, pool_of
from workshop.ending import run_command

_METRICS = {"ttft": "ttft", "itl": "itl", "e2e": "throughput"}
"""The stated errors of each latency."""
_DEVIATIONS = 1.645
"""Standard deviations that nine of ten values of a normal distribution stay within."""
_SHORT = "--rate 4 --prompt-tokens 600 --output-tokens 60"
_DRAFTS = shlex.quote('{"method":"ngram","num_speculative_tokens":2}')
PLANS = (
    f"--model qwen3-14b {_SHORT} --ttft-p99 300ms --itl-p99 40ms --gpus H100,L40S --tp-sizes 1,2",
    f"--model qwen3-0.6b {_SHORT} --ttft-p99 100ms --gpus L4,H100 --tp-sizes 1 --shapes aggregated",
    f"--model llama-3.1-8b-instruct {_SHORT} --ttft-p99 200ms --itl-p99 15ms --gpus H100 --tp-sizes 1",
    f"--model llama-3.1-8b-instruct {_SHORT} --ttft-p99 200ms --itl-p99 15ms --gpus H100 --tp-sizes 1 --shapes pd",
    f"--model llama-3.3-70b {_SHORT} --ttft-p99 500ms --itl-p99 40ms --gpus H100,H200,B200 --tp-sizes 1,2,4",
    f"--model llama-3.3-70b {_SHORT} --ttft-p99 500ms --itl-p99 40ms --gpus H200 --tp-sizes 2,4 --shapes pd",
    f"--model gpt-oss-120b {_SHORT} --ttft-p99 300ms --itl-p99 20ms --gpus H100,B200 --tp-sizes 1,2",
    f"--model deepseek-ai/DeepSeek-V3 {_SHORT} --ttft-p99 1s --itl-p99 60ms --gpus H200,B200 --shapes aggregated",
    f"--model qwen3-30b-a3b {_SHORT} --ttft-p99 300ms --gpus H100 --tp-sizes 1 --dp-sizes 2 --shapes aggregated",
    f"--model qwen3-14b {_SHORT} --ttft-p99 300ms --gpus H100 --tp-sizes 1 --kv-cache-dtypes fp8 --shapes aggregated",
    f"--model qwen3-14b {_SHORT} --ttft-p99 300ms --gpus H100 --tp-sizes 1 --kv-offloading-size 8 --shapes aggregated",
    f"--model qwen3-14b {_SHORT} --ttft-p99 300ms --gpus H100 --tp-sizes 1 --watermark 0.05 --vllm-version 0.19",
    f"--model qwen3-14b {_SHORT} --e2e-p99 12s --gpus H100 --tp-sizes 1 --num-gpu-blocks-override 900",
    f"--model qwen3-14b {_SHORT} --ttft-p99 300ms --gpus H100 --tp-sizes 1 --performance-mode throughput",
    f"--model qwen3-14b {_SHORT} --itl-p99 30ms --gpus H100 --tp-sizes 1 --speculative-config {_DRAFTS}",
    f"--model qwen3-14b {_SHORT} --ttft-p99 300ms --gpus H100 --tp-sizes 1 --max-num-seqs 8 --step-tokens 256",
    f"--model qwen3-32b {_SHORT} --ttft-p99 300ms --itl-p99 30ms --gpus H100,RTX-PRO-6000 --tp-sizes 1,2",
    f"--model mixtral-8x7b-v0.1 {_SHORT} --ttft-p99 300ms --itl-p99 40ms --gpus H100 --tp-sizes 2,4",
    "--model qwen3-14b --rate 8 --workload chatbot --ttft-p99 400ms --itl-p99 40ms --gpus H100 --tp-sizes 1",
    f"--model qwen3-14b {_SHORT} --itl-p99 12ms --gpus H100 --tp-sizes 1,2 --routing-policy least-loaded",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure as planned and as observed, in milliseconds."""

    name: str
    planned_ms: float
    observed_ms: float
    error: float
    """The share that nine of ten predictions of the metric stay within."""
    low_ms: float
    """The lowest value that chance gives a percentile of so many samples; a mean of the same requests is as planned."""
    high_ms: float

    @property
    def deviation(self) -> float:
        """The share by which what was observed exceeds what was planned."""
        return self.observed_ms / self.planned_ms - 1 if self.planned_ms else 0.0

    @property
    def is_within(self) -> bool:
        """Whether what was observed lies in the range that is stated."""
        return self.low_ms * (1 - self.error) <= self.observed_ms <= self.high_ms * (1 + self.error)


def main() -> int:
    """Plan, serve and observe each, and print a line; exit code 1 where a figure is out of the stated range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="numbers of plans, from 1 on")
    parser.add_argument("--speed", type=float, default=0.5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--any-figure", action="store_true", help="exit code 0 whatever was observed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    numbers = [int(each) for each in given.only.split(",") if each] or range(1, len(PLANS) + 1)
    rows = []
    for number in numbers:
        row = tried(PLANS[number - 1], given.speed, given.requests, given.exhaustive)
        rows.append({"number": number, **row})
        print(json.dumps(rows[-1]) if given.json else f"{number:2} {line_of(row)}", flush=True)
    return 0 if given.any_figure or all(row["is_within"] for row in rows) else 1


def tried(words: str, speed: float, num_requests: int, is_exhaustive: bool) -> dict[str, Any]:
    """Return what a plan says, and what was observed of it."""
    arguments = [*shlex.split(words), "--num-requests", str(num_requests)]
    started = time.process_time()
    found = planned(arguments)
    row: dict[str, Any] = {"plan": words, "cpu_s": round(time.process_time() - started, 1), "is_within": False}
    if found.winner is None:
        return {**row, "answer": "none meets the targets"}
    trial = found.winner.trial
    row |= {"answer": f"{trial.counts} x {trial.candidate.label} on {trial.candidate.gpu}", "cost": trial.cost_per_hour}
    if is_exhaustive:
        every = planned([*arguments, "--exhaustive"]).winner
        row["exhaustive_cost"] = None if every is None else every.trial.cost_per_hour
    stated = found.winner.trial.candidate.sureness.step_error
    compared = list(observed(found, trial, speed))
    row |= {"stated": stated, **{each.name: round(each.deviation, 4) for each in compared}}
    limits = found.query.targets.limits_ms
    row["ranges"] = {each.name: [each.low_ms, each.high_ms if each.high_ms < inf else None] for each in compared}
    meets = all(each.observed_ms <= limits.get(each.name, each.observed_ms) * (1 + each.error) for each in compared)
    agrees = not is_exhaustive or row["exhaustive_cost"] == row["cost"]
    row["out"] = [each.name for each in compared if not each.is_within]
    return {**row, "is_within": meets and agrees and not row["out"]}


def line_of(row: Mapping[str, Any]) -> str:
    """Return a row for people."""
    if "stated" not in row:
        return f"{row['answer']}: {row['plan']}"
    figures = ", ".join(f"{name} {value:+.1%}" for name, value in row.items() if name.endswith("_ms"))
    verdict = "within what is stated" if row["is_within"] else f"NOT what is stated {' '.join(row['out'])}".rstrip()
    return f"{row['answer']}, ${row['cost']:.2f}, {row['cpu_s']} s: {figures}; {verdict}"


def planned(arguments: Sequence[str]) -> CapacityPlan:
    """Return the plan of a command line, computed in this process."""
    read = parse_command_line(PlanOptions, [*arguments, "--processes", "1"], parse_value, passes_flags_on=True)
    options = PlanOptions(**read.values)
    return find_plan(options, plan_of(options.simulation, (), None, PlanOptions), lambda _note: None)


def observed(found: CapacityPlan, trial: Trial, speed: float) -> Iterator[Comparison]:
    """Serve and observe a deployment, and yield the figures with a target and the means."""
    serving = serving_of(found.query, trial).simulated
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "load"
        figures, samples = write_load(found, trial, trace, speed)
        with server(*shlex.split(serving)[2:], "--speed", f"{speed:g}") as running:
            words = [
                "observe",
                "--url",
                running.url,
                "--trace",
                f"{trace}.yaml",
                "-o",
                f"{trace}-seen",
                "--format",
                "json",
            ]
            done = subprocess.run(
                [sys.executable, "-m", "blis_sim.cli", *words], capture_output=True, text=True, check=False
            )
    if done.returncode:
        raise RuntimeError(f"blis observe ended with {done.returncode}: {done.stderr[-500:]}")
    seen = json.loads(done.stdout)
    for name in dict.fromkeys((*found.query.targets.limits_ms, "ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms")):
        latency, figure, _ = name.split("_")
        errors = trial.candidate.sureness.errors
        error = errors[_METRICS[latency]].p90 if errors else UNKNOWN_STEP_ERROR
        planned_ms, observed_ms = figures[name], seen[f"{latency}_ms"][figure] * speed
        low_ms, high_ms = planned_ms, planned_ms
        if figure != "mean":
            low_ms, high_ms = spread_ms(samples[latency], int(figure.removeprefix("p")))
        yield Comparison(name, planned_ms, observed_ms, error, low_ms, high_ms)


def spread_ms(samples: Pool, percent: int) -> tuple[float, float]:
    """Return between which values the percentile of so many samples lies in nine of ten cases.

    Ranks of a percentile follow a binomial distribution, in its normal approximation. The upper value is infinite where
    its rank is beyond the samples.
    """
    share = percent / 100
    half = _DEVIATIONS * sqrt(share * (1 - share) / len(samples))
    low, high = floor((share - half) * len(samples)), ceil((share + half) * len(samples))
    return samples.at_rank(max(0, low - 1)) / 1000, samples.at_rank(high) / 1000 if high < len(samples) else inf


def write_load(
    found: CapacityPlan, trial: Trial, trace: Path, speed: float
) -> tuple[Mapping[str, Any], Mapping[str, Pool]]:
    """Write the requests of a plan as a trace for its server, and return figures and samples of the plan.

    At another speed requests are sent as much faster or slower.
    """
    chosen = simulation(found.query.simulation.name)
    settings = trial.candidate.settings_with(trial.counts)
    options: Any = options_from(chosen.options, **{**settings, "format": "json", "trace_output": str(trace)})
    printed = StringIO()
    outcome = chosen.simulate(options)
    with redirect_stdout(printed):
        report(options.report, outcome)
    record = outcome.simulated.requests
    completed = record.is_completed
    samples = {"ttft": pool_of(record.ttft_us[completed]), "itl": record.tokens.gaps()}
    samples["e2e"] = pool_of(record.e2e_us[completed])
    with Path(f"{trace}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for name in ("arrival_time_us", "send_time_us", "deadline_us"):
            row[name] = str(round(int(row[name]) / speed))
    with Path(f"{trace}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return json.loads(printed.getvalue()), samples


if __name__ == "__main__":
    run_command(main)
