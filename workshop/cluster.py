"""The cost of a cluster: CPU per request, and how it grows with instances and with load.

    python -m workshop.cluster [--requests 20000]

Qwen3-14B on H100s, prompts and outputs as `blis run` makes them. Instances get the same load however many there are, so
what grows with their number is the routing. Figures compare with each other within one run, not with other machines.
"""

import argparse
import gc
import time
from dataclasses import dataclass

from blis_sim.engine.cluster.build import build_simulation
from blis_sim.engine.deployment import resolve
from blis_sim.engine.simulation import run_virtual
from blis_sim.options import options_from
from replay.closed_loop import GeneratedArrivals
from replay.run_command import RunOptions, spec_of
from traces.workload.generate import generate

ROUTERS = ("round-robin", "least-loaded", "weighted")
NUM_INSTANCES = (1, 2, 4, 8, 16, 32)
RATES_PER_S = (2.0, 5.0, 10.0, 20.0, 40.0)
"""Request rate of each instance; it bears about 13."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run beside making its workload."""

    cpu_s: float
    num_requests: int
    num_steps: int

    @property
    def us_per_request(self) -> float:
        return self.cpu_s / self.num_requests * 1e6


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    num_requests = parser.parse_args().requests
    print(f"CPU per request in microseconds, {num_requests} requests\n")
    print(f"{'instances, 10/s each':22}" + "".join(f"{router:>14}" for router in ROUTERS) + f"{'steps':>12}")
    for num_instances in NUM_INSTANCES:
        _print_row(str(num_instances), num_instances, 10.0, num_requests)
    print(f"\n{'load of 8 instances':22}" + "".join(f"{router:>14}" for router in ROUTERS) + f"{'steps':>12}")
    for rate in RATES_PER_S:
        _print_row(f"{rate:g}/s each", 8, rate, num_requests)


def _print_row(label: str, num_instances: int, rate: float, num_requests: int) -> None:
    costs = [cost(num_instances, rate, num_requests, router) for router in ROUTERS]
    print(f"{label:22}" + "".join(f"{each.us_per_request:14.1f}" for each in costs) + f"{costs[0].num_steps:12}")


def cost(num_instances: int, rate: float, num_requests: int, router: str) -> Cost:
    """Run one cluster to its end; `rate` is that of each instance in requests per second."""
    options = options_from(
        RunOptions,
        model="qwen/qwen3-14b",
        hardware="H100",
        tp=1,
        num_instances=num_instances,
        rate=rate * num_instances,
        num_requests=num_requests,
        routing_policy=router if num_instances > 1 else "round-robin",
    )
    deployment = resolve(options.cluster.deployment)
    workload = generate(spec_of(options), options.timeout_us)
    arrivals = [(arrival.at, arrival.request) for arrival in GeneratedArrivals(workload.requests, deployment.config)]
    simulation = build_simulation(options.cluster, deployment)
    gc.disable()
    began = time.process_time()
    for _ in run_virtual(simulation, arrivals):
        pass
    cpu_s = time.process_time() - began
    gc.enable()
    return Cost(cpu_s, num_requests, sum(len(engine.steps) for engine in simulation.instances))


if __name__ == "__main__":
    main()
