"""The cost of the engine: simulated tokens and steps per second of CPU, memory, and how both grow.

    python -m workshop.engine_cost [--requests 20000] [--plot docs/pictures/engine-cost.svg]

Qwen3-14B on one H100, prompts and outputs of 512 +- 256 tokens. Each case runs in a process of its own, so that its
memory is its own; figures compare with each other within one run, not with other machines.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SIZES = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on one engine."""

    engine: str
    rate: float
    num_requests: int
    max_num_seqs: int = 256
    fast: bool = True


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a case, beyond start-up."""

    cpu_s: float
    memory_mb: float
    num_steps: int
    num_tokens: int

    @property
    def ns_per_token(self) -> float:
        return self.cpu_s / self.num_tokens * 1e9


def main() -> int:
    """Run all cases, or one of them in a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--only", default="", choices=("paths", "load", "requests", "batch size"))
    parser.add_argument("--case", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(asdict(measure(Case(**json.loads(arguments.case))))))
        return 0
    growths = {
        "load": [Case("vllm", rate, arguments.requests) for rate in (1, 2, 5, 10, 20, 50)],
        "requests": [Case("vllm", 10, max(1, arguments.requests * share // 20)) for share in (1, 10, 100)],
        "batch size": [Case("vllm", 1_000, arguments.requests, max_num_seqs=size) for size in SIZES],
    }
    if arguments.only in ("", "paths"):
        _compare_paths(arguments.requests)
    for what, cases in growths.items():
        if arguments.only in ("", what):
            costs = _measure_growth(what, cases)
            if what == "batch size" and arguments.plot is not None:
                _plot(arguments.plot, [case.max_num_seqs for case in cases], [cost.ns_per_token for cost in costs])
    return 0


def measure(case: Case) -> Cost:
    """Run a case in this process."""
    deployment = resolve(
        DeploymentOptions(
            model="qwen/qwen3-14b",
            hardware="H100",
            tp=1,
            engine=case.engine,
            latency_model="trained-physics",
            max_num_seqs=case.max_num_seqs,
            total_kv_blocks=max(15_909, case.max_num_seqs * 100),
            # Room for whole prompts beside the largest batch, too, so that cases differ in nothing but their size.
            max_num_batched_tokens=8192,
        )
    )
    engine = Engine(deployment.config, deployment.latency, reports_steps=not case.fast)
    arrivals = list(_arrivals(case))
    began = time.process_time()
    for _ in run_virtual(engine, arrivals):
        pass
    cpu_s = time.process_time() - began
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(cpu_s, memory_mb, len(engine.steps), engine.counters.output_tokens)


def _arrivals(case: Case) -> Iterator[tuple[int, Request]]:
    random = np.random.default_rng(42)
    lengths = np.clip(random.normal(512, 256, (case.num_requests, 2)).round(), 2, 7000).astype(int)
    for index, (prompt, output) in enumerate(lengths.tolist()):
        name = f"request_{index}"
        yield int(index * 1e6 / case.rate), Request(name, prompt, output, UniqueBlocks(name), output)


def _in_child(case: Case) -> Cost:
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Cost(**json.loads(output))


def _compare_paths(num_requests: int) -> None:
    """The plain path takes a tenth of the requests: it costs so much more."""
    print("fast path against plain path, CPU per 1,000 requests\n")
    print("| scheduling | rate | fast | plain | ratio |\n|---|---|---|---|---|")
    for scheduling in ("vllm", "blis"):
        for rate in (2, 10, 50):
            few = max(num_requests // 20, 100)
            fast = _in_child(Case(scheduling, rate, few))
            plain = _in_child(Case(scheduling, rate, few, fast=False))
            per_thousand = 1000 / few
            print(
                f"| {scheduling} | {rate}/s | {fast.cpu_s * per_thousand:.3f} s | "
                f"{plain.cpu_s * per_thousand:.3f} s | {plain.cpu_s / fast.cpu_s:.1f} |",
                flush=True,
            )


def _measure_growth(what: str, cases: list[Case]) -> list[Cost]:
    print(f"\ngrowth with {what}\n")
    print("| rate | requests | max_num_seqs | CPU | memory | steps/s | output tokens/s | ns/token |")
    print("|---|---|---|---|---|---|---|---|")
    costs = []
    for case in cases:
        cost = _in_child(case)
        costs.append(cost)
        print(
            f"| {case.rate:g}/s | {case.num_requests:,} | {case.max_num_seqs} | {cost.cpu_s:.2f} s | "
            f"{cost.memory_mb:.0f} MB | {cost.num_steps / cost.cpu_s:,.0f} | {cost.num_tokens / cost.cpu_s:,.0f} | "
            f"{cost.ns_per_token:.0f} |",
            flush=True,
        )
    return costs


def _plot(path: Path, sizes: list[int], ns_per_token: list[float]) -> None:
    from blis_sim.report.figures import Panel, draw_panels

    def draw(axes: "Axes") -> None:
        axes.plot(sizes, ns_per_token, marker="o")
        axes.set(xscale="log", ylim=(0, None))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()

    y_label = "CPU per simulated token, ns"
    draw_panels(
        [Panel(title=y_label, x_label="largest batch (max_num_seqs)", y_label="ns", draw=draw, inches=(6, 3))],
        str(path),
    )


if __name__ == "__main__":
    sys.exit(main())
