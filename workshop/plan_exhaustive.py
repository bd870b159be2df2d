"""Every deployment that is cheaper than the answer of `blis plan`, simulated: none may meet the targets.

    python -m workshop.plan_exhaustive [--per-cell] [--count] [-o plan.jsonl] -- --model llama-3.3-70b --rate 30 ...

The arguments behind `--` are those of `blis plan`. The grid is of GPU types, shapes, tensor parallelism, pipeline
stages, precisions, tokens per step and all counts of instances from 1 on, whatever physics says of so few; with two
pools, tensor parallelism and counts of each. Instances that cannot hold the model, or whose steps are too slow for a
lone request, are not in it. Without --per-cell only what is cheaper than the winner is simulated, with it what is
cheaper than the answer of its GPU type and shape. --count prints the size of the grid alone.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from blis_sim.bench.capacity.answer import CapacityPlan, answer, judge_with
from blis_sim.bench.capacity.candidates import Candidate, Counts, candidates_of
from blis_sim.bench.capacity.command import PlanOptions, _query, rewritten
from blis_sim.bench.capacity.search import TrialRequest
from blis_sim.bench.capacity.simulations import Simulations, simulations
from blis_sim.bench.runner.plan import plan_of
from blis_sim.bench.runner.workers import process_pool
from blis_sim.options.text import parse_command_line, parse_value
from workshop.ending import run_command

_AT_ONCE = 40


def main() -> int:
    """Plan, simulate the grid below the answer, and report what is cheaper; exit code 1 for a cheaper deployment."""
    own, given = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-cell", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--output", "-o", default=None)
    arguments = parser.parse_args(own)
    options = PlanOptions(**parse_command_line(PlanOptions, rewritten(given), parse_value).values)
    plan = plan_of(options.simulation, (), None, PlanOptions)
    with simulations(plan.simulation.name, process_pool(options.processes), arguments.output) as sims:
        started = time.perf_counter()
        found = answer(sims, _query(options, plan))
        print(f"plan: {time.perf_counter() - started:.1f} s, {found.num_simulations} new simulations")
        for (gpu, shape), best in found.best.items():
            print(f"  {gpu} {shape}: {'none' if best is None else f'${best[0].cost_per_hour:.2f} an hour'}")
        grid = sorted(_cheaper(found, arguments.per_cell), key=lambda ask: ask[0].cost_per_hour(ask[1]))
        sizes = Counter((candidate.gpu, candidate.shape) for candidate, _ in grid)
        print(f"grid: {len(grid):,} cheaper deployments: {dict(sizes)}")
        return 0 if arguments.count else _search(sims, found, grid)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place + 1 :])


def _cheaper(found: CapacityPlan, is_per_cell: bool) -> Iterator[TrialRequest]:
    """Yield each deployment that costs less than the answer that it is compared with."""
    query = found.query
    candidates = candidates_of(
        query.simulation, query.settings, query.choices, query.prices, found.load, query.targets
    ).found
    costs = {cell: None if best is None else best[0].cost_per_hour for cell, best in found.best.items()}
    cheapest = min((cost for cost in costs.values() if cost is not None), default=None)
    for candidate in candidates:
        limit = costs[candidate.gpu, candidate.shape] if is_per_cell else cheapest
        if limit is not None:
            for counts in _counts(candidate, limit):
                yield candidate, counts


def _counts(candidate: Candidate, limit: float) -> Iterator[Counts]:
    """Yield all counts of a candidate that cost less than a limit."""
    most = [int(limit / candidate.price_per_gpu_hour / gpus) for gpus in candidate.gpus_per_instance]
    for counts in product(*(range(1, each + 1) for each in most)):
        if candidate.cost_per_hour(counts) < limit - 1e-9:
            yield counts


def _search(sims: Simulations, found: CapacityPlan, grid: Sequence[TrialRequest]) -> int:
    """Simulate the grid from its cheapest deployment on, and print those that meet the targets."""
    judge = judge_with(sims, found.query.targets)
    met: list[TrialRequest] = []
    started = time.perf_counter()
    for start in range(0, len(grid), _AT_ONCE):
        asks = grid[start : start + _AT_ONCE]
        met += [ask for ask, judgement in zip(asks, judge(asks), strict=True) if judgement.is_met]
        done = start + len(asks)
        print(
            f"{done:,} of {len(grid):,}, {time.perf_counter() - started:.0f} s, {len(met)} meet the targets", flush=True
        )
    for candidate, counts in met:
        cost, best = candidate.cost_per_hour(counts), found.best[candidate.gpu, candidate.shape]
        above = "" if best is None else f", the plan's is {best[0].cost_per_hour / cost - 1:.1%} above"
        print(f"cheaper: ${cost:.2f} an hour, {counts} x {candidate.label} on {candidate.gpu} {candidate.shape}{above}")
    print("the answer is that of the exhaustive grid" if not met else f"{len(met)} deployments are cheaper")
    return 1 if met else 0


if __name__ == "__main__":
    run_command(main)
