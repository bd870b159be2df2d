"""Plans, each served from its own command line and observed: are their figures those of the plan?

    python -m workshop.plans_served [--only 1,5] [--speed 0.3] [--requests 40] [--attempts 2] [--exhaustive]
        [--any-figure] [--json]

Each plan is computed, its line of `blis serve` is started at --speed, and `blis observe` sends the requests that the
plan simulated, at their instants. A line for each plan has, for each target, what was planned, the range that the plan
states and what was observed. The range is the sampling error of the percentile, widened by the error of its metric
that nine of ten predictions stay within. Means of the same requests have no sampling error.

A speed below 1 makes whatever the machine adds count less. A plan with a figure out of range is served again, up to
--attempts times, since a machine is not late in the same way twice. With --exhaustive every plan is also searched
exhaustively, and both answers must cost the same. The last line is the verdict; exit code 1 where a figure is out of
range. All plans take 13 minutes on an idle machine.
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
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.bench.capacity import CapacityPlan, Trial, Winner
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
from workshop.ending import run_command

_METRICS = {"ttft": "ttft", "itl": "itl", "e2e": "throughput"}
"""The stated errors of each latency."""
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
    """The lowest value that the plan expects by chance; a mean of the same requests is as planned."""
    high_ms: float
    """The highest one; infinite where the requests are too few to bound it."""

    @property
    def deviation(self) -> float:
        """The share by which what was observed exceeds what was planned."""
        return self.observed_ms / self.planned_ms - 1 if self.planned_ms else 0.0

    @property
    def range_ms(self) -> tuple[float, float]:
        """The lowest and the highest value that the plan states."""
        return self.low_ms * (1 - self.error), self.high_ms * (1 + self.error)

    @property
    def is_within(self) -> bool:
        """Whether what was observed lies in the range that is stated."""
        low_ms, high_ms = self.range_ms
        return low_ms <= self.observed_ms <= high_ms

    @property
    def text(self) -> str:
        """The figure for people."""
        low_ms, high_ms = self.range_ms
        stated = f"{low_ms:.4g} or more" if high_ms == inf else f"{low_ms:.4g} to {high_ms:.4g}"
        verdict = "in" if self.is_within else "OUT"
        name = self.name.removesuffix("_ms").replace("_", " ")
        return f"{name} {self.planned_ms:.4g} ms ({stated}) observed {self.observed_ms:.4g} {verdict}"


def main() -> int:
    """Plan, serve and observe each, and print a line; exit code 1 where a figure is out of the stated range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="numbers of plans, from 1 on")
    parser.add_argument("--speed", type=float, default=0.3)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--attempts", type=int, default=2)
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--any-figure", action="store_true", help="exit code 0 whatever was observed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    numbers = [int(each) for each in given.only.split(",") if each] or range(1, len(PLANS) + 1)
    rows = []
    for number in numbers:
        row = tried(PLANS[number - 1], given.speed, given.requests, given.attempts, given.exhaustive)
        rows.append({"number": number, **row})
        print(json.dumps(rows[-1]) if given.json else f"{number:2} {line_of(row)}", flush=True)
    out = [str(row["number"]) for row in rows if not row["is_within"]]
    if not given.json:
        numbered = f"; not {', '.join(out)}" if out else ""
        print(f"{len(rows) - len(out)} of {len(rows)} plans are within what they state{numbered}")
    return 0 if given.any_figure or not out else 1


def tried(words: str, speed: float, num_requests: int, attempts: int, is_exhaustive: bool) -> dict[str, Any]:
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
    compared: list[Comparison] = []
    while not compared or (row["attempts"] < attempts and not all(each.is_within for each in compared)):
        row["attempts"] = row.get("attempts", 0) + 1
        compared = list(observed(found, found.winner, speed))
    row |= {"stated": stated, **{each.name: round(each.deviation, 4) for each in compared}}
    row["ranges"] = {
        each.name: [low, high if high < inf else None] for each in compared for low, high in [each.range_ms]
    }
    row["figures"] = [each.text for each in compared]
    row["out"] = [each.name for each in compared if not each.is_within]
    agrees = not is_exhaustive or row["exhaustive_cost"] == row["cost"]
    return {**row, "is_within": agrees and not row["out"]}


def line_of(row: Mapping[str, Any]) -> str:
    """Return a row for people."""
    if "stated" not in row:
        return f"NO PLAN  {row['answer']}: {row['plan']}"
    costs = row.get("exhaustive_cost", row["cost"])
    differs = "" if costs == row["cost"] else f", by exhaustive search ${costs}"
    verdict = "within" if row["is_within"] else "OUT   "
    verdict += f" (attempt {row['attempts']})" if row["attempts"] > 1 else ""
    return f"{verdict} {row['answer']}, ${row['cost']:.2f}{differs}: {'; '.join(row['figures'])}"


def planned(arguments: Sequence[str]) -> CapacityPlan:
    """Return the plan of a command line, computed in this process."""
    read = parse_command_line(PlanOptions, [*arguments, "--processes", "1"], parse_value, passes_flags_on=True)
    options = PlanOptions(**read.values)
    return find_plan(options, plan_of(options.simulation, (), None, PlanOptions), lambda _note: None)


def observed(found: CapacityPlan, winner: Winner, speed: float) -> Iterator[Comparison]:
    """Serve and observe a deployment, and yield the figures with a target and the means."""
    trial, ranges = winner.trial, winner.outcome.ranges
    serving = serving_of(found.query, trial).simulated
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "load"
        figures = write_load(found, trial, trace, speed)
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
        chance = ranges.get(name)
        low_ms = planned_ms if chance is None else chance.low_ms
        high_ms = planned_ms if chance is None else inf if chance.high_ms is None else chance.high_ms
        yield Comparison(name, planned_ms, observed_ms, error, low_ms, high_ms)


def write_load(found: CapacityPlan, trial: Trial, trace: Path, speed: float) -> Mapping[str, Any]:
    """Write the requests of a plan as a trace for its server, and return the figures of the plan.

    At another speed requests are sent as much faster or slower.
    """
    chosen = simulation(found.query.simulation.name)
    settings = trial.candidate.settings_with(trial.counts)
    options: Any = options_from(chosen.options, **{**settings, "format": "json", "trace_output": str(trace)})
    printed = StringIO()
    outcome = chosen.simulate(options)
    with redirect_stdout(printed):
        report(options.report, outcome)
    with Path(f"{trace}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for name in ("arrival_time_us", "send_time_us", "deadline_us"):
            row[name] = str(round(int(row[name]) / speed))
    with Path(f"{trace}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    figures: Mapping[str, Any] = json.loads(printed.getvalue())
    return figures


if __name__ == "__main__":
    run_command(main)
