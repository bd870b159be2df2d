"""A recorded fleet of 16 servers, simulated behind a router: throughput and TTFT at each rate beside the recorded ones.

    python -m workshop.fleet_ladder RECORDED.csv [--seeds 1,2] [--routing-scorers prefix-cache:3,queue-depth:2]

The CSV has `arm`, `rate_per_s`, `seconds`, `output_tokens_per_s`, `ttft_mean_s` and `ttft_p90_s`. The servers are those
of llm-d's guide for gpt-oss-120b. 150 groups of five prompts share 6,000 tokens each. inference-perf sends them in one
random order, in each stage from the first on. Without scorers each request goes to a random server.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from blis_sim.engine.cluster.assembly import build_cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.settings import SeededTieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.events import Finished
from blis_sim.engine.request import HashedBlocks, Request
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.units import Micros
from blis_sim.options import options_from
from traces.collector import gc_disabled
from workshop.ending import refuse

SERVER = {"model": "openai/gpt-oss-120b", "hardware": "H100", "tp": 1, "gpu_memory_utilization": 0.95}
NUM_GROUPS, NUM_EACH, SHARED_TOKENS, QUESTION_TOKENS, OUTPUT_TOKENS = 150, 5, 6_000, 500, 500
WARM_UP, PAUSE_S = (15.0, 50.0), 90.0
"""Rate per second and seconds of the first stage, and the assumed pause behind each stage."""


class Stage(NamedTuple):
    """Figures of one stage. Tokens per second count from its first request to its last token."""

    tokens_per_s: float
    ttft_mean_s: float
    ttft_p90_s: float


def main() -> None:
    """Print both arms at each rate, in medians over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--arms", default="round-robin,prefix-affinity")
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--routing-scorers", default="prefix-cache:3,queue-depth:2,kv-utilization:2")
    parser.add_argument("--vllm-version", default="0.23")
    arguments = parser.parse_args()
    if not arguments.recorded.is_file():
        refuse(f"{arguments.recorded}: no such file or folder")
    with arguments.recorded.open() as file:
        rows = list(csv.DictReader(file))
    seconds = {float(row["rate_per_s"]): float(row["seconds"]) for row in rows}
    seeds = [int(each) for each in arguments.seeds.split(",")]
    policies = {"round-robin": {"routing_policy": "random"}, "prefix-affinity": {"routing_policy": "weighted"}}
    policies["prefix-affinity"]["routing_scorers"] = arguments.routing_scorers
    for arm in arguments.arms.split(","):
        options = options_from(
            ClusterOptions, **SERVER, vllm_version=arguments.vllm_version, num_instances=16, **policies[arm]
        )
        runs = [simulated(options, list(seconds.items()), seed) for seed in seeds]
        print(f"\n| {arm} | tokens/s | recorded | TTFT s | recorded | p90 s | recorded |\n|" + "---|" * 7)
        for place, row in enumerate(row for row in rows if row["arm"] == arm):
            mean = Stage(*(median(values) for values in zip(*(run[place] for run in runs), strict=True)))
            print(
                f"| {row['rate_per_s']} | {mean.tokens_per_s:,.0f} | {float(row['output_tokens_per_s']):,.0f} "
                f"| {mean.ttft_mean_s:.3f} | {row['ttft_mean_s']} | {mean.ttft_p90_s:.3f} | {row['ttft_p90_s']} |",
                flush=True,
            )


def simulated(options: ClusterOptions, stages: list[tuple[float, float]], seed: int) -> list[Stage]:
    """Return the figures of the stages, rate and seconds of each, behind a warm-up."""
    deployment = resolve(options.deployment)
    cluster = build_cluster(options, deployment, new_engine, SeededTieBreaker(seed))
    times: list[list[tuple[Micros, Micros, Micros]]] = [[] for _ in range(len(stages) + 1)]
    with gc_disabled():
        for event in run_virtual(cluster, arrivals([WARM_UP, *stages], seed)):
            if isinstance(event, Finished):
                sequence = event.sequence
                first_token_at = sequence.first_token_at or event.at
                times[int(sequence.request.id.split("-")[0])].append((sequence.arrived_at, first_token_at, event.at))
    return [figures(each) for each in times[1:]]


def new_engine(deployment: Deployment) -> Engine:
    """Return an engine that keeps no log of its steps."""
    return Engine(deployment.config, deployment.latency, reports_steps=False)


def figures(times: list[tuple[Micros, Micros, Micros]]) -> Stage:
    """Return the figures of a stage from arrival, first token and end of each request."""
    arrived, first, ended = np.array(times).T
    ttfts_s = (first - arrived) / 1e6
    tokens_per_s = len(times) * OUTPUT_TOKENS / (ended.max() - arrived.min()) * 1e6
    return Stage(tokens_per_s, float(ttfts_s.mean()), float(np.percentile(ttfts_s, 90)))


def arrivals(stages: list[tuple[float, float]], seed: int) -> Iterator[tuple[Micros, Request]]:
    """Yield the requests of all stages, as SharedPrefixDataGenerator and PoissonLoadTimer of inference-perf 0.7.0 do.

    A stage sends rate times seconds requests. How many are due in each second is drawn.
    """
    order = np.random.default_rng(seed).permutation(NUM_GROUPS * NUM_EACH).tolist()
    random = np.random.default_rng(seed)
    start_s = 1.0
    for number, (rate, seconds) in enumerate(stages):
        count, due_s = int(rate * seconds), np.empty(0)
        second_s = start_s
        while len(due_s) < count:
            gaps = random.exponential(1.0, random.poisson(rate))
            due_s = np.append(due_s, second_s + np.cumsum(gaps) / max(gaps.sum(), 1e-9))
            second_s += 1.0
        for place, at_s in enumerate(due_s[:count].tolist()):
            prompt = order[place % len(order)]
            yield round(at_s * 1e6), request(f"{number}-{place}", prompt)
        start_s = float(due_s[count - 1]) + PAUSE_S


def request(name: str, prompt: int) -> Request:
    """Return a request with one of the prompts, whose first blocks are those of its group."""
    num_shared, num_blocks = SHARED_TOKENS // 16, (SHARED_TOKENS + QUESTION_TOKENS) // 16
    group = (prompt // NUM_EACH) * 1_000
    own = 1_000_000 + prompt * 1_000
    hashes = (*range(group, group + num_shared), *range(own, own + num_blocks - num_shared))
    return Request(name, SHARED_TOKENS + QUESTION_TOKENS, OUTPUT_TOKENS, HashedBlocks(name, hashes), OUTPUT_TOKENS)


if __name__ == "__main__":
    main()
